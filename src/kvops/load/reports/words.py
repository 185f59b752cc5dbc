"""The shared parts of a run's report in a reader's words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvops.load.pacing import Pacing
from kvops.load.reports.analysis import Analysis
from kvops.load.reports.cells import UNKNOWN, seconds
from kvops.load.runs import RunInfo
from kvops.load.statistics import Series, Summary
from kvops.telemetry.snapshot import Known
from kvops.units import format_duration, format_ratio, format_whole

Rows = Sequence[tuple[str, ...]]


def figures(found: Analysis) -> Rows:
    """The few numbers that a reader looks for first: title, figure, what stands beside it."""
    total = found.summary
    asked = total.succeeded + total.failed
    failed = f"{format_ratio(total.failed / asked)} of those that ended" if asked else ""
    rows = [
        ("requests", format_whole(total.requests), _per_second(total.requests_per_second)),
        ("failed", format_whole(total.failed), failed),
        ("first token p50", seconds(total.ttft.p50, 0.50), ""),
        ("first token p95", seconds(total.ttft.p95_with_failures, 0.95), "failures counted"),
        ("per token p50", seconds(total.tpot.p50, 0.50), ""),
        (
            "output",
            _rate(total.output_tokens_per_second),
            f"{format_whole(total.output_tokens)} tokens",
        ),
    ]
    good = found.goodput
    if good is not None and good.share is not None:
        beside = f"{good.good} of {good.attempted} met all objectives"
        rows.append(("goodput", format_ratio(good.share), beside))
    return rows


def latencies(found: Analysis) -> list[tuple[str, Rows]]:
    """A table of all requests, and one of those after the warm-up where there was one."""
    tables = [("All requests", _latency_rows(found.summary))]
    if found.typical is not None:
        tables.append(("After the warm-up", _latency_rows(found.typical)))
    return tables


def _latency_rows(total: Summary) -> Rows:
    named = [
        ("first token", total.ttft),
        ("first token as scheduled", total.scheduled_ttft),
        ("gap between deltas", total.itl),
        ("per output token", total.tpot),
        ("whole answer", total.e2e),
    ]
    return [(name, *_series(one)) for name, one in named]


def _series(one: Series) -> tuple[str, ...]:
    return (
        seconds(one.p50, 0.50), seconds(one.p95, 0.95), seconds(one.p99, 0.99),
        UNKNOWN if one.max is None else format_duration(one.max), format_whole(one.samples),
        seconds(one.p50_with_failures, 0.50), seconds(one.p95_with_failures, 0.95),
        seconds(one.p99_with_failures, 0.99),
    )  # fmt: skip


def settings(info: RunInfo) -> Rows:
    """What was asked for, so that the run can be made again."""
    chosen = [(name, _text(value)) for name, value in info.options.items()]
    bound = "none" if info.duration is None else format_duration(info.duration)
    return [
        *chosen,
        ("time bound", bound),
        ("processes", str(info.processes)),
        ("seed", str(info.seed)),
    ]


def node(info: RunInfo) -> Rows:
    """What it ran on, as the node told before the run."""
    rows = [("model", info.model or "not told"), ("context", _tokens(info.max_model_len))]
    before = info.before
    if before is None:
        return [*rows, ("snapshot", "the node gave none")]
    rows.append(("engine", f"{before.engine} {before.engine_version}"))
    if isinstance(before.model, Known):
        told = before.model.value
        rows.append(
            ("weights", f"{told.weights_dtype}, KV {told.kv_dtype}, revision {told.revision}")
        )
    if isinstance(before.config_hash, Known):
        rows.append(("configuration", before.config_hash.value))
    return rows


def took(info: RunInfo) -> str:
    return "" if info.finished_at is None else format_duration(info.finished_at - info.started_at)


def load(info: RunInfo) -> str:
    """`8 users`, or how requests arrived in an open loop."""
    pacing = info.pacing
    if info.report == "knee":
        unit = "requests/s" if info.options["by"] == "rate" else "users"
        return f"{info.options['start']:g} to {info.options['most']:g} {unit}"
    if info.report == "ramp" and info.users > 1:
        return f"1 to {info.users} users"
    if pacing.kind == "closed":
        return f"{info.users} user{'' if info.users == 1 else 's'}"
    return f"open loop, {', '.join(_arrivals(pacing))}"


def _arrivals(pacing: Pacing) -> Iterator[str]:
    yield pacing.kind
    if pacing.rate is not None:
        yield pacing.speed
    if pacing.kind == "gamma":
        yield f"burstiness {pacing.burstiness:g}"
    if pacing.burst_size:
        yield f"bursts of {pacing.burst_size} every {format_duration(pacing.burst_every)}"
    if pacing.trace:
        yield pacing.trace


def _tokens(count: int | None) -> str:
    return "not told" if count is None else f"{format_whole(count)} tokens"


def _rate(rate: float | None) -> str:
    return UNKNOWN if rate is None else f"{rate:.1f} tok/s"


def _per_second(rate: float | None) -> str:
    return "" if rate is None else f"{rate:.2f}/s as expected"


def _text(value: object) -> str:
    if value is None:
        return "off"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)

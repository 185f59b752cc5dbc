"""A steady load for long: does the first token get slower, does memory or the KV cache fill up?

The warm-up is left out by rule; a drift counts when the robust slope's interval holds no zero and the change over the
run is more than is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from kvops.load.records import RequestRecord, ServerSample
from kvops.load.reports.base import RunData, Verdict, verdict
from kvops.load.reports.cells import UNKNOWN, Columns
from kvops.load.reports.slo import cache_notes, claims, client_gaps, slo_reasons
from kvops.load.reports.slo import table as claims_table
from kvops.load.slo import Slo
from kvops.load.statistics import Trend, after_warm_up, trend, warm_up, window_seconds
from kvops.telemetry.snapshot import Known
from kvops.units import format_duration, format_ratio

WINDOWS = 20
MEMORY = "memory in use"


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """Of one measure over the run."""

    name: str
    trend: Trend | None
    """None: too few points, or not exposed."""
    change: float | None
    """Share of what it is measured against: of its own level, of the device, of the pool."""
    surest: float | None
    """The least of it that the interval allows."""
    allowed: float

    @property
    def broken(self) -> bool:
        """Growth only: that it gets faster or smaller is no fault."""
        return self.change is not None and self.change > self.allowed and (self.surest or 0.0) > 0


def judge(data: RunData) -> Verdict:
    options = data.info.options
    failures, gaps = slo_reasons(data)
    found = drifts(data)
    for one in found:
        if one.broken and one.name == MEMORY and _shared(data):
            gaps.append(f"{_grew(one)}; the other processes of the machine are among it")
        elif one.broken:
            failures.append(_grew(one))
    held = window_seconds(data.records) or 0.0
    if held < options["least_seconds"]:
        gaps.append(
            f"{format_duration(held)} of load say nothing of drift, {format_duration(options['least_seconds'])} "
            "are the least: raise --duration"
        )
    if found[0].trend is None:
        gaps.append("too few answers for a trend of the first token")
    return verdict(
        failures, [*gaps, *client_gaps(data)], [*_notes(data), *cache_notes(data.records)]
    )


def _grew(one: Drift) -> str:
    return (
        f"{one.name} grew by {format_ratio(one.change or 0.0)} over the run (with 95 % confidence by "
        f"{format_ratio(one.surest or 0.0)} or more), {format_ratio(one.allowed)} are allowed"
    )


def _shared(data: RunData) -> bool:
    """Whether the node's memory is the machine's, in which others, the load generator too, have theirs."""
    seen = data.info.before
    if seen is None or not isinstance(seen.memory, Known):
        return False
    return seen.memory.value.device == "cpu"


def facts(data: RunData) -> dict[str, Any]:
    return {
        "warm_up": msgspec.to_builtins(warm_up(data.records)),
        "drifts": msgspec.to_builtins(drifts(data)),
    }


def body(data: RunData) -> RenderableType:
    table = Columns(("measure", "change over the run", "surely", "allowed", ""))
    for one in drifts(data):
        shown = [UNKNOWN if value is None else _signed(value) for value in (one.change, one.surest)]
        mark = (
            Text("· not known", style="yellow") if one.change is None
            else Text("✘ drifts", style="red") if one.broken
            else Text("✔ steady", style="green")
        )  # fmt: skip
        table.add(one.name, *shown, format_ratio(one.allowed), mark)
    found = claims(data.records, Slo.of(data.info.options))
    return Group(table, claims_table(found)) if found else table


def drifts(data: RunData) -> list[Drift]:
    """The first token's comes first."""
    options = data.info.options
    kept = after_warm_up(data.records, warm_up(data.records))
    start = min((one.t_send for one in kept), default=0.0)
    end = max((one.t_send for one in kept), default=0.0)
    seen = [one for one in data.server if start <= one.at <= end]
    return [
        _latency(kept, options["max_drift"]),
        _part(MEMORY, seen, lambda one: one.memory_used, options["max_growth"]),
        _part("KV blocks in use", seen, lambda one: one.kv_usage, options["max_growth"]),
        _part("requests waiting", seen, _waiting, options["max_growth"]),
    ]


def _latency(kept: Sequence[RequestRecord], allowed: float) -> Drift:
    answered = [one for one in kept if one.expected and one.ttft is not None]
    found = trend(
        [one.t_send for one in answered], [one.ttft or 0.0 for one in answered], points=WINDOWS
    )
    if found is None:
        return Drift(
            name="time to the first token", trend=None, change=None, surest=None, allowed=allowed
        )
    return Drift(
        name="time to the first token", trend=found, change=found.change, surest=found.surest_change,
        allowed=allowed,
    )  # fmt: skip


def _part(
    name: str,
    seen: Sequence[ServerSample],
    of: Callable[[ServerSample], float | None],
    allowed: float,
) -> Drift:
    """Of a reading that is a share already: its change is one of the whole."""
    points = [(one.at, value) for one in seen if (value := of(one)) is not None]
    found = trend([at for at, _ in points], [value for _, value in points], points=WINDOWS)
    if found is None:
        return Drift(name=name, trend=None, change=None, surest=None, allowed=allowed)
    nearest = 0.0 if found.is_flat else min(found.low, found.high, key=abs)
    return Drift(
        name=name,
        trend=found,
        change=found.slope * found.span,
        surest=nearest * found.span,
        allowed=allowed,
    )


def _waiting(one: ServerSample) -> float | None:
    """Share of all requests in the node that wait."""
    if one.waiting is None or one.running is None:
        return None
    whole = one.waiting + one.running
    return one.waiting / whole if whole else 0.0


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else '-' if value < 0 else ''}{format_ratio(abs(value))}"


def _notes(data: RunData) -> list[str]:
    unseen = [one.name for one in drifts(data)[1:] if one.trend is None]
    return [f"not shown by the node, or too few samples: {', '.join(unseen)}"] if unseen else []

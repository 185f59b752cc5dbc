"""The fleet table, its order and filter, the reasons for a node's status, and the fleet's totals."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from rich.text import Text

from kvops.telemetry.snapshot import Known, NodeSnapshot
from kvops.tui import theme
from kvops.tui.findings import KV_CRIT, KV_WARN, binding_limit
from kvops.tui.glyphs import Glyphs
from kvops.tui.render import table
from kvops.tui.render.memory import memory_summary
from kvops.tui.render.table import Column
from kvops.tui.text import (
    age_text,
    bar,
    clean,
    dimmed,
    fit,
    in_a_row,
    latency_text,
    percent_text,
    rate_text,
    spark,
    status_text,
    usage_style,
)
from kvops.tui.view import SEVERITY, Event, FleetView, NodeView

SORTS = ("severity", "name", "KV used", "waiting", "TTFT p95")
_LEVEL_STYLES = {"CRIT": theme.CRIT, "WARN": f"bold {theme.WARN}", "INFO": theme.LABEL}


def ordered(nodes: Sequence[NodeView], sort: str) -> list[NodeView]:
    """By the sort's name; unknown values last, then by name."""
    if sort == "severity":
        return sorted(nodes, key=lambda node: (SEVERITY.index(node.status), node.name))
    value = {"KV used": kv_usage, "waiting": waiting, "TTFT p95": ttft_p95}.get(sort)
    if value is None:
        return sorted(nodes, key=lambda node: node.name)
    return sorted(nodes, key=lambda node: (-(value(node) or 0), value(node) is None, node.name))


def matching(nodes: Sequence[NodeView], pattern: str) -> list[NodeView]:
    """Nodes whose name, model, engine or status holds `pattern`; with a leading `!` those where none does."""
    inverse, wanted = pattern.startswith("!"), pattern.removeprefix("!").strip().lower()
    if not wanted:
        return list(nodes)
    return [node for node in nodes if (wanted in _searched(node)) is not inverse]


def _searched(node: NodeView) -> str:
    return " ".join((node.name, node.status, _model(node.snapshot), _engine(node.snapshot))).lower()


def kv_usage(node: NodeView) -> float | None:
    kv = node.snapshot.kv if node.snapshot else None
    return kv.value.usage_ratio if isinstance(kv, Known) else None


def running(node: NodeView) -> int | None:
    queue = node.snapshot.queue if node.snapshot else None
    return queue.value.running if isinstance(queue, Known) else None


def waiting(node: NodeView) -> int | None:
    queue = node.snapshot.queue if node.snapshot else None
    return queue.value.waiting if isinstance(queue, Known) else None


def ttft_p95(node: NodeView) -> float | None:
    latency = node.snapshot.latency if node.snapshot else None
    return latency.value.ttft.p95 if isinstance(latency, Known) else None


def itl_p95(node: NodeView) -> float | None:
    latency = node.snapshot.latency if node.snapshot else None
    return latency.value.inter_token.p95 if isinstance(latency, Known) else None


def output_rate(node: NodeView) -> float | None:
    traffic = node.snapshot.traffic if node.snapshot else None
    return traffic.value.generation_tokens_per_second if isinstance(traffic, Known) else None


def hit_ratio(node: NodeView) -> float | None:
    cache = node.snapshot.prefix_cache if node.snapshot else None
    return cache.value.hit_ratio if isinstance(cache, Known) else None


def preemptions(node: NodeView) -> int | None:
    kv = node.snapshot.kv if node.snapshot else None
    return kv.value.preemptions if isinstance(kv, Known) else None


def _model(snapshot: NodeSnapshot | None) -> str:
    return (
        clean(snapshot.model.value.name, 60)
        if snapshot and isinstance(snapshot.model, Known)
        else ""
    )


def _engine(snapshot: NodeSnapshot | None) -> str:
    return clean(f"{snapshot.engine} {snapshot.engine_version}", 30) if snapshot else ""


_SHORT = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


def precision(snapshot: NodeSnapshot | None) -> str:
    """Weights / key-value precision, e.g. `q4_1/f32`."""
    if snapshot is None or not isinstance(snapshot.model, Known):
        return ""
    model = snapshot.model.value
    kinds = (clean(kind.lower(), 12) for kind in (model.weights_dtype, model.kv_dtype))
    return "/".join(_SHORT.get(kind, kind) for kind in kinds)


def fleet_columns(glyphs: Glyphs) -> list[Column[NodeView]]:
    plain = partial(_plain, glyphs)
    seconds = partial(_seconds, glyphs)
    return [
        Column(
            "STATUS", 6 if glyphs.ascii else 8, lambda n: status_text(n.status, glyphs), 0, "left"
        ),
        Column("NODE", 10, lambda n: Text(clean(n.name), "bold"), 1, "left", grow=14),
        Column("ENGINE", 11, plain(lambda n: _engine(n.snapshot)), 12, "left"),
        Column("MODEL", 13, plain(lambda n: _model(n.snapshot)), 8, "left", grow=16),
        Column("W/KV", 9, plain(lambda n: precision(n.snapshot)), 13, "left", grow=3),
        Column(
            "MEMORY",
            9,
            lambda n: memory_summary(n.snapshot, glyphs) if n.snapshot else Text(glyphs.none),
            11,
        ),
        Column("KV 60s", 8, lambda n: _kv_trend(n, glyphs), 10, "left"),
        Column("KV USED", 15, lambda n: _kv_bar(n, glyphs), 2, "left"),
        Column("RUN", 4, plain(lambda n: _count(running(n), glyphs)), 5),
        Column("WAIT", 4, plain(lambda n: _count(waiting(n), glyphs)), 3),
        Column("TTFT95", 6, seconds(ttft_p95), 6),
        Column("ITL95", 6, seconds(itl_p95), 7),
        Column("OUT/s", 5, plain(lambda n: _rate(output_rate(n), glyphs)), 9),
        Column("HIT", 4, plain(lambda n: percent_text(hit_ratio(n), glyphs)), 14),
        Column("PRE", 4, plain(lambda n: _count(preemptions(n), glyphs)), 15),
        Column("AGE", 4, lambda n: Text(age_text(n.age) or glyphs.none), 4),
    ]


def _plain(glyphs: Glyphs, value: Callable[[NodeView], str]) -> Callable[[NodeView], Text]:
    return lambda node: Text(value(node) or glyphs.none)


def _seconds(
    glyphs: Glyphs, value: Callable[[NodeView], float | None]
) -> Callable[[NodeView], Text]:
    return lambda node: Text(latency_text(value(node), glyphs))


def _count(value: int | None, glyphs: Glyphs) -> str:
    return glyphs.none if value is None else str(value)


def _rate(value: float | None, glyphs: Glyphs) -> str:
    return glyphs.none if value is None else rate_text(value)


def _kv_trend(node: NodeView, glyphs: Glyphs) -> Text:
    values = node.history.window("kv_usage", end=node.now, seconds=64, points=8)
    return Text(spark(values, glyphs, top=1.0), theme.BLUE)


def _kv_bar(node: NodeView, glyphs: Glyphs) -> Text:
    ratio = kv_usage(node)
    if ratio is None:
        return Text(glyphs.none)
    return Text(f"{percent_text(ratio, glyphs):>4} ").append_text(
        bar(ratio, 10, glyphs, usage_style(ratio, KV_WARN, KV_CRIT))
    )


def fleet_row(columns: Sequence[Column[NodeView]], node: NodeView) -> Text:
    """A node's line; what is not live is in one muted colour, but its status."""
    line = table.line(columns, node)
    if node.fresh:
        return line
    status = fit(columns[0].cell(node), columns[0].width)
    return status.append_text(dimmed(line[columns[0].width :]))


def why_lines(node: NodeView, width: int, height: int, glyphs: Glyphs) -> list[Text]:
    """What holds the node back, each finding with its remedy, then the numbers behind them."""
    lines = [_fact("binding limit", Text(binding_limit(node), "bold"))]
    if not node.findings:
        lines.append(
            _fact(
                "findings",
                Text("nothing to report" if node.fresh else "waiting for the first answer"),
            )
        )
    for finding in node.findings:
        lines.append(_finding(finding.level, finding.title, finding.detail))
        if finding.remedy:
            lines.append(_fact("", Text.assemble(("next: ", theme.LABEL), clean(finding.remedy))))
    if node.fresh:
        lines += _facts(node, max(0, width - 15), glyphs)
    return [fit(line, width) for line in lines[:height]]


def _fact(label: str, value: Text) -> Text:
    return Text.assemble((f"{label:<15}", theme.LABEL), value)


def _facts(node: NodeView, width: int, glyphs: Glyphs) -> list[Text]:
    rate = output_rate(node)
    flight = (
        ("running", _count(running(node), glyphs)),
        ("waiting", _count(waiting(node), glyphs)),
    )
    latency = (
        ("TTFT p95", latency_text(ttft_p95(node), glyphs)),
        ("inter-token p95", latency_text(itl_p95(node), glyphs)),
    )
    work = (
        ("out", f"{_rate(rate, glyphs)} tok/s"),
        ("prefix hits", percent_text(hit_ratio(node), glyphs)),
    )
    return [
        _fact("in flight", in_a_row(flight, width, glyphs)),
        _fact("latency", in_a_row(latency, width, glyphs)),
        _fact("work", in_a_row(work, width, glyphs)),
    ]


def _finding(level: str, title: str, detail: str) -> Text:
    return Text.assemble((f"{clean(title):<14} ", _LEVEL_STYLES[level]), clean(detail))


def total_lines(view: FleetView, width: int, glyphs: Glyphs) -> list[Text]:
    """Sums over live nodes only; percentiles are not summed, so the worst node is named."""
    live = [node for node in view.nodes if node.fresh]
    lines = [
        ("nodes", status_counts(view, glyphs)),
        (
            "run / wait",
            Text(f"{_total(live, running, glyphs)} / {_total(live, waiting, glyphs)}", "bold"),
        ),
        ("out tok/s", Text(_total(live, output_rate, glyphs), "bold")),
        ("KV used", _range(live, kv_usage, partial(percent_text, glyphs=glyphs), glyphs)),
        ("worst TTFT95", _worst(live, ttft_p95, glyphs)),
        ("worst ITL95", _worst(live, itl_p95, glyphs)),
    ]
    return [
        fit(Text.assemble((f"{label:<13}", theme.LABEL), value), width) for label, value in lines
    ]


def status_counts(view: FleetView, glyphs: Glyphs) -> Text:
    line = Text()
    for status in reversed(SEVERITY):
        count = sum(node.status == status for node in view.nodes)
        if count:
            line.append(f" {glyphs.dot} " if line.plain else "", theme.LABEL)
            line.append(f"{count} {status.lower()}")
    return line if line.plain else Text("none yet", theme.MUTED)


def _total(
    nodes: Sequence[NodeView], value: Callable[[NodeView], float | None], glyphs: Glyphs
) -> str:
    known = [number for node in nodes if (number := value(node)) is not None]
    if not known:
        return glyphs.none
    total = sum(known)
    return str(total) if isinstance(total, int) else rate_text(total)


def _range(
    nodes: Sequence[NodeView],
    value: Callable[[NodeView], float | None],
    show: Callable[[float], str],
    glyphs: Glyphs,
) -> Text:
    known = [number for node in nodes if (number := value(node)) is not None]
    if not known:
        return Text(glyphs.none)
    low, high = show(min(known)), show(max(known))
    return Text(low if low == high else f"{low} {glyphs.dash} {high}", "bold")


def _worst(
    nodes: Sequence[NodeView], value: Callable[[NodeView], float | None], glyphs: Glyphs
) -> Text:
    known = [(number, node.name) for node in nodes if (number := value(node)) is not None]
    if not known:
        return Text(f"{glyphs.none} too few samples" if nodes else glyphs.none, theme.MUTED)
    worst, name = max(known)
    return Text.assemble((latency_text(worst, glyphs), "bold"), (f"  {clean(name)}", theme.LABEL))


def event_lines(events: Sequence[Event], width: int, height: int, glyphs: Glyphs) -> list[Text]:
    lines = []
    for event in events[:height]:
        clock = time.strftime("%H:%M:%S", time.gmtime(event.at))
        line = Text.assemble(
            (f"{clock} ", theme.LABEL), (f"{event.level:<5}", _LEVEL_STYLES[event.level])
        )
        line.append_text(fit(Text(clean(event.node), "bold"), 12)).append(f" {event.text}")
        lines.append(fit(line, width))
    return lines or [Text("nothing has happened since the console was opened", theme.MUTED)]

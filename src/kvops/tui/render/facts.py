"""Why a node is as it is, the fleet's totals, and what happened last."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from rich.text import Text

from kvops.tui import theme
from kvops.tui.findings import binding_limit
from kvops.tui.glyphs import Glyphs
from kvops.tui.render.values import (
    hit_ratio,
    itl_p95,
    kv_usage,
    output_rate,
    running,
    ttft_p95,
    waiting,
)
from kvops.tui.text import (
    clean,
    count_text,
    fit,
    in_a_row,
    latency_text,
    percent_text,
    rate_text,
    speed_text,
    wrapped,
)
from kvops.tui.view import SEVERITY, Event, FleetView, NodeView
from kvops.units import format_whole

LABEL_WIDTH = 15
MORE_KEY = "w"
"""Shows the next part of the reasons."""
EVENT_INDENT = 9
"""Under the event's level."""
_LEVEL_STYLES = {"CRIT": theme.CRIT, "WARN": f"bold {theme.WARN}", "INFO": theme.LABEL}


def why_lines(node: NodeView, width: int, height: int, glyphs: Glyphs, page: int = 0) -> list[Text]:
    """What holds the node back, each finding with its remedy, then the numbers behind them.

    Where there is no room for all, `page` says which part; after the last one comes the first.
    """
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
            lines.append(_fact("  next", Text(clean(finding.remedy))))
    if node.fresh:
        lines += _facts(node, max(0, width - LABEL_WIDTH), glyphs)
    indent = LABEL_WIDTH if width >= 4 * LABEL_WIDTH else 4
    parts = [part for line in lines for part in wrapped(line, width, indent)]
    return [fit(part, width) for part in _page(page, height, parts)]


def _page(page: int, height: int, lines: list[Text]) -> list[Text]:
    """At most `height` lines; where some have no place, the last one says how many, and the key to them."""
    if len(lines) <= height or height < 2:
        return lines[:height]
    room = height - 1
    start = page % -(-len(lines) // room) * room
    left = len(lines) - start - room
    words = (
        f"+ {left} more lines: {MORE_KEY}" if left > 0 else f"the end; from the start: {MORE_KEY}"
    )
    shown = lines[start : start + room]
    return [*shown, *[Text()] * (room - len(shown)), Text(words, theme.MUTED)]


def _fact(label: str, value: Text) -> Text:
    return Text.assemble((f"{label:<{LABEL_WIDTH}}", theme.LABEL), value)


def _facts(node: NodeView, width: int, glyphs: Glyphs) -> list[Text]:
    rate = output_rate(node)
    flight = (
        ("running", count_text(running(node), glyphs)),
        ("waiting", count_text(waiting(node), glyphs)),
    )
    latency = (
        ("TTFT p95", latency_text(ttft_p95(node), glyphs)),
        ("inter-token p95", latency_text(itl_p95(node), glyphs)),
    )
    work = (
        ("out", f"{speed_text(rate, glyphs)} tok/s"),
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
        ("nodes", status_counts(view, width - 13, glyphs)),
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


def status_counts(view: FleetView, width: int, glyphs: Glyphs) -> Text:
    """Gravest first, as many as fit."""
    line = Text()
    for status in SEVERITY:
        count = sum(node.status == status for node in view.nodes)
        gap = f" {glyphs.dot} " if line.plain else ""
        words = f"{count} {status.lower()}"
        if count and line.cell_len + len(gap) + len(words) <= width:
            line.append(gap, theme.LABEL).append(words)
    return line if view.nodes else Text("none yet", theme.MUTED)


def _total(
    nodes: Sequence[NodeView], value: Callable[[NodeView], float | None], glyphs: Glyphs
) -> str:
    known = [number for node in nodes if (number := value(node)) is not None]
    if not known:
        return glyphs.none
    total = sum(known)
    return format_whole(total) if isinstance(total, int) else rate_text(total)


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
    """Newest first, each on as many lines as it takes, as long as there is room."""
    lines: list[Text] = []
    name_width = min(20, max((len(event.node) for event in events[:height]), default=0) + 1)
    for event in events[:height]:
        clock = time.strftime("%H:%M:%S", time.gmtime(event.at))
        line = Text.assemble(
            (f"{clock} ", theme.LABEL), (f"{event.level:<5}", _LEVEL_STYLES[event.level])
        )
        line.append_text(fit(Text(clean(event.node), "bold"), name_width)).append(f" {event.text}")
        parts, room = wrapped(line, width, EVENT_INDENT), height - len(lines)
        if room < 1:
            break
        lines += parts[:room]
        if len(parts) > room:
            lines[-1].append(" …")
    return [fit(line, width) for line in lines] or [
        Text("nothing has happened since the console was opened", theme.MUTED)
    ]

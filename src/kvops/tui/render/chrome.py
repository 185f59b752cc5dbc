"""The lines around the panels: header, banner, tabs and the headline of a node."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.text import Text

from kvops.telemetry.snapshot import Known
from kvops.tui import theme
from kvops.tui.glyphs import Glyphs
from kvops.tui.render.facts import status_counts
from kvops.tui.render.values import precision
from kvops.tui.text import age_text, clean, fit, span_text, spread, status_text
from kvops.tui.view import FleetView, NodeView
from kvops.units import format_whole

LAG_SHOWN = 3.0
"""Seconds by which the engine's figures may trail before it is said."""


@dataclass(frozen=True)
class Mode:
    """How the console is being used."""

    write: bool
    interval: float
    frozen_for: float | None = None
    """Seconds since the picture was frozen; None when it is live."""


def clock_text(now: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(now))


def header_line(view: FleetView, mode: Mode, width: int, glyphs: Glyphs) -> Text:
    """Rights and liveness are always shown; the rest gives way on narrow screens."""
    count = len(view.nodes)
    left = Text.assemble((" kvops ", f"bold {theme.BLUE}"))
    left.append(f" {count} node{'' if count == 1 else 's'}  ", theme.LABEL)
    right = _mode_text(view, mode, width, glyphs)
    if count:
        room = width - left.cell_len - right.cell_len - 1
        left.append_text(status_counts(view, room, glyphs))
    return spread(fit(left, min(left.cell_len, width - right.cell_len - 1)), right, width)


def _mode_text(view: FleetView, mode: Mode, width: int, glyphs: Glyphs) -> Text:
    wide, full = width >= 80, width >= 100
    read_only = "READ-ONLY" if wide else "RO"
    right = Text.assemble(
        ("WRITE", f"bold {theme.WARN}") if mode.write else (read_only, theme.LABEL)
    )
    right.append(
        f" {glyphs.dot} every {mode.interval:g} s {glyphs.dot} " if full else " ", theme.LABEL
    )
    if mode.frozen_for is None:
        right.append("live", f"bold {theme.GOOD}")
    else:
        since = f" {clock_text(view.now)[11:19]}" if wide else ""
        right.append(
            f" FROZEN{since} (-{span_text(mode.frozen_for)}) ", f"reverse bold {theme.WARN}"
        )
    clock = clock_text(view.now + (mode.frozen_for or 0.0))
    return right.append(f"  {clock if full else clock[11:]} " if wide else " ", theme.LABEL)


def banner_line(view: FleetView, width: int, glyphs: Glyphs) -> Text | None:
    """The gravest finding of each node in trouble, or None when all is quiet."""
    line = Text()
    for node in view.nodes:
        finding = next((f for f in node.findings if f.level == "CRIT"), None)
        if finding is None:
            continue
        line.append("   " if line.plain else " ")
        line.append_text(status_text(node.status, glyphs)).append(f" {clean(node.name)} ", "bold")
        line.append(f"{finding.title}: {clean(finding.detail)}")
    return fit(line, width) if line.plain else None


def tab_line(active: str, tabs: Sequence[tuple[str, str]], width: int) -> Text:
    """`tabs` are (key, title)."""
    line = Text(" ")
    for key, title in tabs:
        if title == active:
            line.append(f"[{key} {title}]", f"bold {theme.BLUE}").append("  ")
        else:
            line.append(f" {key} {title} ", theme.LABEL).append("  ")
    return fit(line, width)


def node_line(node: NodeView, width: int, glyphs: Glyphs) -> Text:
    """Name, status and age always; of the rest as many whole parts as fit."""
    left = Text.assemble((f" {clean(node.name)} ", "bold")).append_text(
        status_text(node.status, glyphs)
    )
    age = age_text(node.age) or "no answer yet"
    right = Text.assemble((f"age {age} ", theme.LABEL if node.fresh else f"bold {theme.WARN}"))
    if node.engine_lag is not None and node.engine_lag > LAG_SHOWN:
        lag = f"{glyphs.dot} engine figures {age_text(node.engine_lag)} older "
        right.append(lag, f"bold {theme.WARN}")
    room = width - right.cell_len - 1
    for words, style in _identity(node):
        if left.cell_len + len(words) + 2 > room:
            break
        left.append(f"  {words}", style)
    return spread(fit(left, min(left.cell_len, room)), right, width)


def _identity(node: NodeView) -> Iterator[tuple[str, str]]:
    """What serves here, in words and their style, the least important last."""
    snapshot = node.snapshot
    if snapshot is None:
        return
    yield f"{clean(snapshot.engine)} {clean(snapshot.engine_version, 20)}", theme.LABEL
    if isinstance(snapshot.model, Known):
        yield clean(snapshot.model.value.name, 60), "bold"
        yield precision(snapshot), theme.LABEL
        yield f"ctx {format_whole(snapshot.model.value.max_model_len)}", theme.LABEL
    if isinstance(snapshot.uptime_seconds, Known):
        yield f"up {span_text(snapshot.uptime_seconds.value)}", theme.LABEL
    if isinstance(snapshot.config_hash, Known):
        yield f"cfg {clean(snapshot.config_hash.value, 8)}", theme.LABEL

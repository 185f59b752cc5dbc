"""The latency panel: percentiles of the node's window, traffic, and the trend of one measure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from kvops.telemetry.snapshot import Known, LatencyWindow, NodeSnapshot, Percentiles, Traffic
from kvops.tui import theme
from kvops.tui.glyphs import Glyphs
from kvops.tui.render.chart import chart_lines, chart_points
from kvops.tui.text import (
    clean,
    dimmed,
    fit,
    in_a_row,
    latency_text,
    percentile_text,
    rate_text,
    span_text,
)
from kvops.tui.view import NodeView
from kvops.units import format_ratio, format_whole


@dataclass(frozen=True)
class Trend:
    """A measure that the chart can show."""

    title: str
    low: str
    """Series drawn as an area."""
    high: str | None
    """Series drawn as a line above it."""
    unit: str
    """`s`, `1/s` or `ratio`."""
    floor: float
    """The axis reaches at least this far."""


TRENDS = (
    Trend("TTFT p50 / p95", "ttft_p50", "ttft_p95", "s", 0.1),
    Trend("inter-token p50 / p95", "itl_p50", "itl_p95", "s", 0.02),
    Trend("output tokens/s", "generation_rate", None, "1/s", 10.0),
    Trend("KV used", "kv_usage", None, "ratio", 1.0),
    Trend("requests running", "running", "waiting", "count", 4.0),
)


def axis_top(highest: float, floor: float) -> float:
    """The smallest of 1, 2, 3, 4, 5, 6, 8 times a power of ten that holds both: it moves in steps only."""
    wanted = max(highest, floor)
    base = 10.0 ** math.floor(math.log10(wanted))
    return next(
        step * base for step in (1, 2, 3, 4, 5, 6, 8, 10) if step * base >= wanted * (1 - 1e-9)
    )


def axis_label(value: float, unit: str, glyphs: Glyphs) -> str:
    if unit == "s":
        return latency_text(value, glyphs) if value else "0"
    return format_ratio(value) if unit == "ratio" else f"{value:g}"


def latency_title(snapshot: NodeSnapshot, glyphs: Glyphs) -> str:
    if not isinstance(snapshot.latency, Known):
        return "Latency"
    return (
        f"Latency {glyphs.dot} last {span_text(window_seconds(snapshot, snapshot.latency.value))}"
    )


def window_seconds(snapshot: NodeSnapshot, latency: LatencyWindow) -> float:
    """The span that the percentiles are of: a node cannot look back further than it has been up."""
    if isinstance(snapshot.uptime_seconds, Known):
        return min(latency.window_seconds, snapshot.uptime_seconds.value)
    return latency.window_seconds


def latency_lines(snapshot: NodeSnapshot, width: int, glyphs: Glyphs) -> list[Text]:
    """A heading and a row each for TTFT, inter-token, queue and whole request."""
    if not isinstance(snapshot.latency, Known):
        return [Text(f"not exposed: {clean(snapshot.latency.reason)}", theme.MUTED)]
    latency = snapshot.latency.value
    columns = ("p50", "p95", "p99", "max") if width >= 52 else ("p50", "p95", "p99")
    samples = "" if width < 40 else "    n" if width < 52 else " samples"
    head = Text(f"{'':<11}" + "".join(f"{name:>7} " for name in columns) + samples, theme.LABEL)
    rows = [
        _row(label, values, columns, len(samples), glyphs)
        for label, values in (
            ("TTFT", latency.ttft),
            ("inter-token", latency.inter_token),
            ("queue", latency.queue),
            ("request", latency.duration),
        )
    ]
    return [fit(line, width) for line in (head, *rows)]


def _row(
    label: str, values: Percentiles, columns: Sequence[str], room: int, glyphs: Glyphs
) -> Text:
    """`room`: cells for the number of samples; 0 leaves it out."""
    line = Text.assemble((f"{label:<11}", theme.LABEL))
    for which in columns:
        line.append_text(fit(percentile_text(values, which, glyphs), 7, "right")).append(" ")
    return line.append(f"{format_whole(values.samples):>{room}}", theme.LABEL) if room else line


def traffic_line(snapshot: NodeSnapshot, width: int, glyphs: Glyphs) -> Text:
    if not isinstance(snapshot.traffic, Known):
        return fit(
            Text(f"traffic not exposed: {clean(snapshot.traffic.reason)}", theme.MUTED), width
        )
    return in_a_row(traffic_parts(snapshot.traffic.value, glyphs), width, glyphs)


def traffic_parts(traffic: Traffic, glyphs: Glyphs) -> list[tuple[str, str]]:
    errors = glyphs.none if traffic.error_ratio is None else format_ratio(traffic.error_ratio)
    return [
        ("out", f"{rate_text(traffic.generation_tokens_per_second)} tok/s"),
        ("in", f"{rate_text(traffic.prompt_tokens_per_second)} tok/s"),
        ("errors", errors),
        ("", f"{rate_text(traffic.requests_per_second)} req/s"),
    ]


def trend_lines(
    node: NodeView, trend: Trend, width: int, height: int, seconds: int, glyphs: Glyphs
) -> list[Text]:
    """A heading with the latest values, then `height - 1` rows of chart with its axis on the left."""
    label_width = 7
    inner = width - label_width - 2
    if inner < 8 or height < 2:
        return []
    points = chart_points(inner, glyphs)
    low = node.history.window(trend.low, end=node.now, seconds=seconds, points=points)
    high: list[float | None] = [None] * points
    if trend.high is not None:
        high = node.history.window(trend.high, end=node.now, seconds=seconds, points=points)
    known = [value for value in (*low, *high) if value is not None]
    top = axis_top(max(known, default=0.0), trend.floor)
    rows = chart_lines(low, high, height - 1, top, glyphs)
    if not node.fresh:
        rows = [dimmed(row) for row in rows]
    heading = _trend_heading(trend, seconds, bool(known), glyphs)
    return [fit(heading, width), *_with_axis(rows, trend, top, label_width, glyphs)]


def _trend_heading(trend: Trend, seconds: int, known: bool, glyphs: Glyphs) -> Text:
    line = Text.assemble((trend.title, theme.LABEL))
    line.append(f" {glyphs.dot} last {span_text(seconds)}", theme.LABEL)
    return line if known else line.append(f" {glyphs.dot} no reading yet", theme.LABEL)


def _with_axis(
    rows: list[Text], trend: Trend, top: float, width: int, glyphs: Glyphs
) -> list[Text]:
    labels = [""] * len(rows)
    labels[-1] = axis_label(0.0, trend.unit, glyphs)
    labels[0] = axis_label(top, trend.unit, glyphs)
    if len(rows) >= 6 and len(rows) % 2 == 0:
        labels[len(rows) // 2] = axis_label(top / 2, trend.unit, glyphs)
    return [
        Text.assemble((f"{label:>{width}} {glyphs.axis}", theme.LABEL), row)
        for label, row in zip(labels, rows, strict=True)
    ]

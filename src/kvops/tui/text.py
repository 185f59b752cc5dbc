"""Short texts of bounded width: ages, latencies, bars, percentiles. A missing value is a dash, never a zero."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.style import Style
from rich.text import Text

from kvops.telemetry.snapshot import Percentiles
from kvops.tui import theme
from kvops.tui.glyphs import Glyphs
from kvops.tui.view import Status
from kvops.units import format_count, format_duration, format_ratio, format_whole

STATUS_STYLES: dict[Status, str] = {
    "OK": theme.GOOD,
    "WARN": f"bold {theme.WARN}",
    "CRIT": theme.CRIT,
    "DOWN": theme.CRIT,
    "DENIED": theme.CRIT,
    "UNSEEN": f"bold {theme.WARN}",
    "STALE": f"bold {theme.MUTED}",
    "DRAIN": theme.FOREGROUND,
    "LOAD": theme.FOREGROUND,
    "WAIT": theme.MUTED,
}
_PLAIN = Console(width=80)
"""Rich wraps text with a console at hand; nothing is written to it."""
NEEDED = {"p50": 5, "p95": 20, "p99": 100}


def clean(text: str, limit: int = 200) -> str:
    """Names and messages from elsewhere: one line, nothing that moves the cursor, bounded."""
    return "".join(c if c.isprintable() else " " for c in text[:limit])


def cut(text: str, width: int) -> str:
    """At most `width` characters, the last one an ellipsis where something was cut."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"[:width]


def status_text(status: Status, glyphs: Glyphs) -> Text:
    return Text(f"{glyphs.status[status]} {status}".strip(), STATUS_STYLES[status])


def span_text(seconds: float) -> str:
    """A span in whole seconds: `18 s`, then `3m 05s`, `2h 10m`, `4d 3h` as durations are written."""
    return f"{int(seconds)} s" if seconds < 60 else format_duration(seconds)


def age_text(seconds: float | None) -> str:
    """Up to a hundred days at most seven characters; empty for None."""
    return "" if seconds is None else span_text(seconds)


def latency_text(seconds: float | None, glyphs: Glyphs) -> str:
    """As durations are written; up to a hundred days at most seven characters."""
    if seconds is None:
        return glyphs.none
    text = format_duration(seconds)
    return text.replace("µ", "u") if glyphs.ascii else text


def percent_text(ratio: float | None, glyphs: Glyphs) -> str:
    """At most five characters: `97 %`, `3.4 %`."""
    return glyphs.none if ratio is None else format_ratio(ratio)


def rate_text(per_second: float) -> str:
    return f"{per_second:.1f}" if per_second < 100 else format_count(per_second)


def count_text(value: int | None, glyphs: Glyphs) -> str:
    return glyphs.none if value is None else format_whole(value)


def speed_text(value: float | None, glyphs: Glyphs) -> str:
    return glyphs.none if value is None else rate_text(value)


def bar(ratio: float, width: int, glyphs: Glyphs, style: str) -> Text:
    """`width` cells, filled by `ratio` (0..1) to an eighth of a cell where the glyphs allow."""
    eighths = round(min(max(ratio, 0.0), 1.0) * width * 8)
    full, part = divmod(eighths, 8)
    if ratio > 0 and eighths == 0:
        part = 1
    tail = glyphs.bar_parts[part - 1] if part and glyphs.bar_parts else ""
    if part and not glyphs.bar_parts and part >= 4:
        tail = glyphs.bar_full
    filled = glyphs.bar_full * full + tail
    return Text.assemble((filled, style), (glyphs.bar_empty * (width - len(filled)), theme.FREE))


def spark(values: Sequence[float | None], glyphs: Glyphs, *, top: float) -> str:
    """One character a value on the fixed axis 0..top; a gap has a sign of its own."""
    last = len(glyphs.levels) - 1
    return "".join(
        glyphs.gap
        if value is None
        else glyphs.levels[min(last, math.floor(max(0.0, value) / top * (last + 1)))]
        for value in values
    )


def usage_style(ratio: float, warn: float, crit: float) -> str:
    return theme.CRIT if ratio >= crit else theme.WARN if ratio >= warn else theme.GOOD


def percentile_text(values: Percentiles, which: str, glyphs: Glyphs) -> Text:
    """The percentile, or a dash where the samples are too few to claim it."""
    value: float | None = getattr(values, which)
    return Text(latency_text(value, glyphs), theme.MUTED if value is None else "bold")


def dimmed(text: Text) -> Text:
    """The same text in the one muted colour: a value that is not live."""
    return Text(text.plain, theme.STALE)


def fit(text: Text, width: int, align: str = "left") -> Text:
    """Exactly `width` cells."""
    fitted = text.copy()
    fitted.truncate(width, overflow="ellipsis")
    gap = width - fitted.cell_len
    if gap > 0:
        return Text(" " * gap).append_text(fitted) if align == "right" else fitted.append(" " * gap)
    return fitted


def spread(left: Text, right: Text, width: int) -> Text:
    """`left` and `right` at the two ends of a line; the right end gives way."""
    room = width - left.cell_len - right.cell_len
    if room < 1:
        return fit(left, width)
    return left.copy().append(" " * room).append_text(right)


def in_a_row(parts: Iterable[tuple[str, str]], width: int, glyphs: Glyphs) -> Text:
    """`label value · label value …`: as many whole parts as fit into `width`."""
    line = Text()
    for label, value in parts:
        part = Text.assemble((f" {glyphs.dot} " if line.plain else "", theme.LABEL))
        part.append(f"{label} " if label else "", theme.LABEL).append(value, "bold")
        if line.cell_len + part.cell_len <= width:
            line.append_text(part)
    return line


def in_rows(parts: Iterable[tuple[str, str]], width: int, glyphs: Glyphs) -> list[Text]:
    """As `in_a_row`, on as many lines as it takes: no part is left out or cut."""
    lines: list[Text] = []
    for label, value in parts:
        part = Text.assemble((f"{label} " if label else "", theme.LABEL), (value, "bold"))
        if lines and lines[-1].cell_len + 3 + part.cell_len <= width:
            lines[-1].append(f" {glyphs.dot} ", theme.LABEL).append_text(part)
        else:
            lines.append(part)
    return lines


def wrapped(line: Text, width: int, indent: int) -> list[Text]:
    """`line` on as many lines of `width` cells as it takes, those after the first indented."""
    if line.cell_len <= width or width <= indent:
        return [line]
    first, *_ = line.wrap(_PLAIN, width)
    rest = line[len(first.plain) :]
    while rest.plain.startswith(" "):
        rest = rest[1:]
    first.rstrip()
    more = list(rest.wrap(_PLAIN, width - indent)) if rest.plain else []
    return [first, *(Text(" " * indent).append_text(part) for part in more)]


def style_key(text: Text) -> tuple[object, ...]:
    """What makes two texts look different."""
    return (
        text.plain,
        text.style if isinstance(text.style, str | Style) else str(text.style),
        tuple(text.spans),
    )

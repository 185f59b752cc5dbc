"""Short texts of bounded width: ages, latencies, bars, percentiles. A missing value is a dash, never a zero."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rich.style import Style
from rich.text import Text

from kvops.telemetry.snapshot import Percentiles
from kvops.tui import theme
from kvops.tui.glyphs import Glyphs
from kvops.tui.view import Status
from kvops.units import format_count

STATUS_STYLES: dict[Status, str] = {
    "OK": theme.GOOD,
    "WARN": f"bold {theme.WARN}",
    "CRIT": theme.CRIT,
    "DOWN": theme.CRIT,
    "DENIED": theme.CRIT,
    "STALE": f"bold {theme.MUTED}",
    "DRAIN": theme.FOREGROUND,
    "LOAD": theme.FOREGROUND,
    "WAIT": theme.MUTED,
}
NEEDED = {"p50": 5, "p95": 20, "p99": 100}


def clean(text: str, limit: int = 200) -> str:
    """Names and messages from elsewhere: one line, nothing that moves the cursor, bounded."""
    return "".join(c if c.isprintable() else " " for c in text[:limit])


def cut(text: str, width: int) -> str:
    """At most `width` characters, the last one an ellipsis where something was cut."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"[:width]


def status_text(status: Status, glyphs: Glyphs) -> Text:
    return Text(f"{glyphs.status[status]} {status}".strip(), STATUS_STYLES[status])


def age_text(seconds: float | None) -> str:
    """At most four characters: `0s`, `18s`, `3m`, `2h`, `4d`; empty for None."""
    if seconds is None:
        return ""
    for limit, unit, size in ((100, "s", 1), (6000, "m", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{int(seconds / size)}{unit}"
    return f"{min(int(seconds / 86400), 999)}d"


def latency_text(seconds: float | None, glyphs: Glyphs) -> str:
    """At most six characters: `850µs`, `310ms`, `4.81s`, `61.3s`, `12m`."""
    if seconds is None:
        return glyphs.none
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f}us" if glyphs.ascii else f"{seconds * 1e6:.0f}µs"
    if seconds < 0.01:
        return f"{seconds * 1e3:.1f}ms"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.0f}ms"
    if seconds < 10:
        return f"{seconds:.2f}s"
    return f"{seconds:.1f}s" if seconds < 600 else f"{seconds / 60:.0f}m"


def percent_text(ratio: float | None, glyphs: Glyphs) -> str:
    """At most four characters."""
    return glyphs.none if ratio is None else f"{ratio * 100:.0f}%"


def rate_text(per_second: float) -> str:
    return f"{per_second:.1f}" if per_second < 100 else format_count(per_second)


def count_text(value: int | None, glyphs: Glyphs) -> str:
    return glyphs.none if value is None else str(value)


def speed_text(value: float | None, glyphs: Glyphs) -> str:
    return glyphs.none if value is None else rate_text(value)


def thousands(count: int) -> str:
    """`16 384`."""
    return f"{count:,}".replace(",", " ")


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


def style_key(text: Text) -> tuple[object, ...]:
    """What makes two texts look different."""
    return (
        text.plain,
        text.style if isinstance(text.style, str | Style) else str(text.style),
        tuple(text.spans),
    )

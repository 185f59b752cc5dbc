"""A trend on a fixed axis, two points a column in braille, one in ASCII. A gap stays a gap."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from kvops.tui import theme
from kvops.tui.glyphs import Glyphs

Values = Sequence[float | None]
_AREA, _LINE = theme.KV_USED, theme.ORANGE
# Bit of a dot in a braille cell, by column and by height from the bottom (Unicode 6.0, chart 2800).
_DOTS = ((0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08))


def chart_points(width: int, glyphs: Glyphs) -> int:
    """Values that a chart of `width` columns shows."""
    return 2 * width if glyphs.braille else width


def chart_lines(low: Values, high: Values, height: int, top: float, glyphs: Glyphs) -> list[Text]:
    """`height` rows, highest first: `low` as an area, `high` as a line over it, both on the axis 0..top.

    Both have `chart_points` values, oldest first; a column in which neither has one shows the gap sign.
    """
    if height < 1:
        return []
    if glyphs.braille:
        return _braille(low, high, height, top, glyphs)
    return [_ascii_row(low, high, row, height, top) for row in reversed(range(height))]


def _level(value: float, levels: int, top: float) -> int:
    """Dots from the bottom, at least one: a known value is always seen."""
    return min(levels, max(1, round(value / top * levels)))


def _braille(low: Values, high: Values, height: int, top: float, glyphs: Glyphs) -> list[Text]:
    columns = len(low) // 2
    areas, strokes = [[0] * columns for _ in range(height)], [[0] * columns for _ in range(height)]
    before: int | None = None
    for x in range(2 * columns):
        if (value := low[x]) is not None:
            _fill(areas, x, 0, _level(value, 4 * height, top))
        level = None if high[x] is None else _level(high[x] or 0.0, 4 * height, top)
        if level is not None:
            start = level - 1 if before is None else min(before, level - 1)
            _fill(strokes, x, max(0, start), max(level, before or 0) if before else level)
        before = level
    rows = zip(areas, strokes, strict=True)
    lines = [_braille_row(area, stroke) for area, stroke in rows]
    _mark_gaps(lines[0], low, high, glyphs)
    return lines[::-1]


def _fill(grid: list[list[int]], x: int, start: int, end: int) -> None:
    """Set the dots from `start` to below `end`, counted from the bottom, in dot column `x`."""
    for dot in range(start, min(end, 4 * len(grid))):
        grid[dot // 4][x // 2] |= _DOTS[x % 2][dot % 4]


def _braille_row(area: list[int], stroke: list[int]) -> Text:
    line = Text()
    for fill, over in zip(area, stroke, strict=True):
        bits = fill | over
        line.append(chr(0x2800 + bits) if bits else " ", _LINE if over else _AREA)
    return line


def _mark_gaps(bottom: Text, low: Values, high: Values, glyphs: Glyphs) -> None:
    plain = list(bottom.plain)
    for column in range(len(plain)):
        pair = slice(2 * column, 2 * column + 2)
        if all(value is None for value in (*low[pair], *high[pair])):
            plain[column] = glyphs.gap
            bottom.stylize(theme.FREE, column, column + 1)
    bottom.plain = "".join(plain)


def _ascii_row(low: Values, high: Values, row: int, height: int, top: float) -> Text:
    line = Text()
    for area, stroke in zip(low, high, strict=True):
        if stroke is not None and _level(stroke, height, top) == row + 1:
            line.append("*", _LINE)
        elif area is not None and _level(area, height, top) > row:
            line.append("#", _AREA)
        else:
            line.append(" ")
    return line

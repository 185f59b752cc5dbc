"""The key-value panel's words, and the block map laid out on a grid of cells."""

from __future__ import annotations

from rich.text import Text

from kvops.telemetry.history import History
from kvops.telemetry.snapshot import Known, KvMap, NodeSnapshot
from kvops.tui import theme
from kvops.tui.glyphs import Glyphs
from kvops.tui.text import age_text, clean, in_a_row
from kvops.units import format_ratio, format_whole

AGE_SHOWN = 5.0
"""Seconds by which a map may trail the snapshot before it is said."""
CELL_STYLES = {
    "s": theme.CELL_SHARED,
    "p": theme.CELL_PRIVATE,
    "m": theme.CELL_MIXED,
    "c": theme.CELL_CACHED,
    "f": theme.CELL_FREE,
}
CELL_WORDS = (("s", "shared"), ("p", "private"), ("m", "mixed"), ("c", "cached"), ("f", "free"))


def kv_title(snapshot: NodeSnapshot, kv_map: KvMap | None, glyphs: Glyphs) -> str:
    if not isinstance(snapshot.kv, Known):
        return "KV blocks"
    title = f"KV blocks {format_whole(snapshot.kv.value.total_blocks)}"
    if kv_map is not None and kv_map.blocks_per_cell > 1:
        title += f" {glyphs.dot} 1 cell = {kv_map.blocks_per_cell} blocks"
    if kv_map is not None and snapshot.taken_at - kv_map.at > AGE_SHOWN:
        title += f" {glyphs.dot} {age_text(snapshot.taken_at - kv_map.at)} old"
    return title


def map_rows(kv_map: KvMap, width: int, height: int) -> list[str]:
    """The cells row by row. Few cells are drawn wider, so that a small pool fills the panel too."""
    count = len(kv_map.cells)
    if count == 0 or width < 1 or height < 1:
        return []
    stretch = max(1, min(width, width * height // count))
    while stretch > 1 and -(-count // max(1, width // stretch)) > height:
        stretch -= 1
    per_row = max(1, width // stretch)
    rows = [kv_map.cells[start : start + per_row] for start in range(0, count, per_row)]
    return ["".join(letter * stretch for letter in row) for row in rows[:height]]


def map_lines(kv_map: KvMap, width: int, height: int, glyphs: Glyphs, *, live: bool) -> list[Text]:
    """The map as coloured text; all muted when it is not live."""
    return [_map_line(row, glyphs, live=live) for row in map_rows(kv_map, width, height)]


def _map_line(row: str, glyphs: Glyphs, *, live: bool) -> Text:
    line = Text()
    start = 0
    for end in range(1, len(row) + 1):
        if end == len(row) or row[end] != row[start]:
            glyph = glyphs.cells.get(row[start], "?")
            line.append(
                glyph * (end - start),
                CELL_STYLES.get(row[start], theme.WARN) if live else theme.STALE,
            )
            start = end
    return line


def legend(width: int, glyphs: Glyphs) -> Text:
    gap = "  " if width >= 50 else " "
    line = Text()
    for letter, word in CELL_WORDS:
        line.append(gap if line.plain else "").append(glyphs.cells[letter], CELL_STYLES[letter])
        line.append(f" {word}" if gap == "  " else word, theme.MUTED)
    return line


def kv_words(
    snapshot: NodeSnapshot, history: History, now: float, width: int, glyphs: Glyphs
) -> Text:
    """Used share, waste, preemptions and evictions of the last minute, as many as fit."""
    if not isinstance(snapshot.kv, Known):
        return Text(f"not exposed: {clean(snapshot.kv.reason)}", theme.MUTED)
    kv = snapshot.kv.value
    rises = (history.rise(name, end=now, seconds=60) for name in ("preemptions", "evictions"))
    preempted, evicted = (glyphs.none if rise is None else f"{rise:.0f}/min" for rise in rises)
    parts = [
        ("used", format_ratio(kv.usage_ratio)),
        ("waste", format_ratio(kv.waste_ratio)),
        ("preempt", preempted),
        ("evict", evicted),
    ]
    if kv.fragmentation_ratio is not None:
        parts.append(("partly filled", format_ratio(kv.fragmentation_ratio)))
    return in_a_row(parts, width, glyphs)


def hit_words(snapshot: NodeSnapshot, glyphs: Glyphs) -> Text:
    if not isinstance(snapshot.prefix_cache, Known):
        return Text(f"prefix cache not exposed: {clean(snapshot.prefix_cache.reason)}", theme.MUTED)
    cache = snapshot.prefix_cache.value
    if not cache.enabled:
        return Text("prefix cache off", theme.MUTED)
    ratio = cache.hit_ratio
    hits = glyphs.none if ratio is None else format_ratio(ratio)
    line = Text.assemble(("prefix hits ", theme.LABEL), (hits, "bold"))
    return line.append(f" of {format_whole(cache.query_tokens)} tokens", theme.LABEL)

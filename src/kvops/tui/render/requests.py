"""The request table. Never any text of a prompt or an answer: the snapshot holds none."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from kvops.telemetry.snapshot import RequestRow
from kvops.tui import theme
from kvops.tui.glyphs import Glyphs
from kvops.tui.render.table import Column
from kvops.tui.text import age_text, clean, latency_text, percent_text
from kvops.units import format_whole

SORTS = ("KV blocks", "age", "wait")
_STATE_STYLES = {
    "decode": theme.BLUE,
    "prefill": f"bold {theme.FOREGROUND}",
    "waiting": theme.MUTED,
    "preempted": f"bold {theme.WARN}",
}


def ordered_requests(rows: Sequence[RequestRow], sort: str) -> list[RequestRow]:
    """Largest first; equals by identity, so that lines do not jump."""
    if sort == "age":
        return sorted(rows, key=lambda row: (-row.age_seconds, row.request_id))
    if sort == "wait":
        return sorted(rows, key=lambda row: (-row.wait_seconds, row.request_id))
    return sorted(rows, key=lambda row: (-row.kv_blocks, row.request_id))


def request_columns(glyphs: Glyphs) -> list[Column[RequestRow]]:
    return [
        Column("REQUEST", 16, lambda r: Text(clean(r.request_id), "bold"), 0, "left", grow=24),
        Column("TENANT", 10, lambda r: Text(clean(r.tenant)), 5, "left", grow=6),
        Column("CLASS", 7, lambda r: Text(clean(r.priority)), 9, "left"),
        Column("STATE", 9, lambda r: Text(r.state, _STATE_STYLES[r.state]), 1, "left"),
        Column("PROMPT", 7, lambda r: Text(format_whole(r.prompt_tokens)), 4),
        Column(
            "GEN / MAX",
            13,
            lambda r: Text(f"{format_whole(r.generated_tokens)} / {format_whole(r.max_tokens)}"),
            3,
        ),
        Column("KV BLK", 6, lambda r: Text(format_whole(r.kv_blocks)), 2),
        Column("CACHED", 6, lambda r: Text(_cached(r, glyphs)), 8),
        Column("WAIT", 7, lambda r: Text(latency_text(r.wait_seconds, glyphs)), 7),
        Column("TTFT", 7, lambda r: Text(latency_text(r.ttft_seconds, glyphs)), 6),
        Column("PRE", 3, lambda r: Text(str(r.preemptions)), 10),
        Column("AGE", 7, lambda r: Text(age_text(r.age_seconds)), 1),
    ]


def _cached(row: RequestRow, glyphs: Glyphs) -> str:
    return percent_text(
        row.cached_tokens / row.prompt_tokens if row.prompt_tokens else None, glyphs
    )

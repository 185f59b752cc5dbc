"""The memory panel: a stacked bar and a row an account. The accounts add up to the device's total."""

from __future__ import annotations

from dataclasses import dataclass

from rich.text import Text

from kvops.telemetry.snapshot import Known, KvUsage, MemoryLedger, NodeSnapshot
from kvops.tui import theme
from kvops.tui.glyphs import Glyphs
from kvops.tui.text import clean, fit, in_rows
from kvops.units import format_bytes, format_ratio, format_whole


@dataclass(frozen=True)
class Account:
    label: str
    bytes: int
    style: str
    glyph: str
    note: str = ""


def memory_title(snapshot: NodeSnapshot, glyphs: Glyphs) -> str:
    if not isinstance(snapshot.memory, Known):
        return "Memory"
    memory = snapshot.memory.value
    kind = "RAM" if memory.device.startswith("cpu") else "VRAM"
    return f"{kind} {format_bytes(memory.total)} {glyphs.dot} {clean(memory.device, 40)}"


def memory_lines(snapshot: NodeSnapshot, width: int, glyphs: Glyphs, height: int = 8) -> list[Text]:
    """A bar and seven rows; where the height does not suffice, the accounts in a row."""
    if not isinstance(snapshot.memory, Known):
        return [Text(f"not exposed: {clean(snapshot.memory.reason)}", theme.MUTED)]
    kv = snapshot.kv.value if isinstance(snapshot.kv, Known) else None
    total = snapshot.memory.value.total
    accounts = _accounts(snapshot.memory.value, kv, glyphs)
    if height <= len(accounts):
        sizes = [(account.label, format_bytes(account.bytes)) for account in accounts]
        lines = [stacked_bar(accounts, width, total), *in_rows(sizes, width, glyphs)]
        return lines[-height:] if height < len(lines) else lines
    return [
        stacked_bar(accounts, width, total),
        *(_row(account, total, width) for account in accounts),
    ]


def _accounts(memory: MemoryLedger, kv: KvUsage | None, glyphs: Glyphs) -> list[Account]:
    weights, used, cached, idle, activations, other, free = tuple(glyphs.memory)
    reserved = memory.kv_reserved
    kv_idle = max(0, reserved - memory.kv_used - memory.kv_cached)
    pool = (
        f"pool: {format_whole(kv.total_blocks)} {glyphs.times} {format_bytes(kv.bytes_per_block)}"
        if kv
        else ""
    )
    share = f"{format_ratio(memory.kv_used / reserved)} of the pool" if reserved else ""
    return [
        Account("weights", memory.weights, theme.WEIGHTS, weights),
        Account("KV used", memory.kv_used, theme.KV_USED, used, share),
        Account("KV cached", memory.kv_cached, theme.KV_CACHED, cached, "reusable prefixes"),
        Account("KV idle", kv_idle, theme.KV_IDLE, idle, pool),
        Account(
            "activations", memory.activations, theme.ACTIVATIONS, activations, "peak of a step"
        ),
        Account("other", memory.other, theme.OTHER, other, "all else in use"),
        Account("free", memory.free, theme.FREE, free),
    ]


def _row(account: Account, total: int, width: int) -> Text:
    line = Text.assemble(
        (account.glyph, account.style),
        f" {account.label:<11} {format_bytes(account.bytes):>9}",
        (f" {format_ratio(account.bytes / total):>6}" if total else "", "bold"),
    )
    if account.note and line.cell_len + len(account.note) + 2 <= width:
        line.append(f"  {account.note}", theme.MUTED)
    return fit(line, width)


def stacked_bar(accounts: list[Account], width: int, total: int) -> Text:
    """One row of exactly `width` cells; an account that holds anything has at least one cell."""
    cells = _shares([account.bytes for account in accounts], width, total)
    line = Text()
    for account, count in zip(accounts, cells, strict=True):
        line.append(account.glyph * count, account.style)
    return fit(line, width)


def _shares(sizes: list[int], width: int, total: int) -> list[int]:
    if total <= 0 or width <= 0:
        return [0] * len(sizes)
    cells = [max(1, round(size * width / total)) if size > 0 else 0 for size in sizes]
    while sum(cells) > width and max(cells) > 0:
        cells[cells.index(max(cells))] -= 1
    while sum(cells) < width and max(cells) > 0:
        cells[cells.index(max(cells))] += 1
    return cells


def memory_summary(snapshot: NodeSnapshot, glyphs: Glyphs) -> Text:
    """`4.1/24 GiB`: in use over total."""
    if not isinstance(snapshot.memory, Known):
        return Text(glyphs.none, theme.MUTED)
    memory = snapshot.memory.value
    gib = 2**30
    used = memory.total - memory.free
    return Text(f"{used / gib:.{0 if used >= 100 * gib else 1}f}/{memory.total / gib:.0f} GiB")

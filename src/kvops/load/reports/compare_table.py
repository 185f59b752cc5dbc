"""The comparison of two runs for a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from kvops.load.reports.cells import UNKNOWN, Columns
from kvops.load.reports.compare import RunComparison, Unit
from kvops.load.statistics.compare import Comparison
from kvops.units import format_duration, format_ratio

STYLES = {"better": "green", "same": "", "worse": "bold red", "too few": "yellow"}
GLYPHS = {"better": "▲", "same": "=", "worse": "▼", "too few": "?"}


def render(found: RunComparison) -> RenderableType:
    """For a terminal."""
    table = Columns(
        ("measure", "before", "after", "shift", "interval", "n", ""), give_up=("n", "interval")
    )
    for row in found.rows:
        one = row.comparison
        mark = Text(f"{GLYPHS[one.outcome]} {one.outcome}", style=STYLES[one.outcome])
        table.add(row.measure, _shown(row.before, row.unit), _shown(row.after, row.unit), *_shift(one),
                  f"{one.before_samples}, {one.after_samples}", mark)  # fmt: skip
    notes = [
        *(f"{row.measure}: {row.why}" for row in found.rows if row.why),
        *(f"differs: {line}" for line in found.differences),
        *(f"doubtful: {line}" for line in found.doubts),
    ]
    style = STYLES.get(found.outcome, "yellow")
    return Group(
        Text(f"before {found.before}\nafter  {found.after}"), table,
        Text(found.outcome.upper(), style=f"bold {style}"), *(Text(f"  {line}") for line in notes),
    )  # fmt: skip


def _shift(one: Comparison) -> tuple[str, str]:
    if one.shift is None and one.shift_low is None and one.shift_high is None:
        return UNKNOWN, UNKNOWN
    return _signed(one.shift), f"{_signed(one.shift_low)} … {_signed(one.shift_high)}"


def _signed(share: float | None) -> str:
    return "failed" if share is None else f"{100 * share:+.1f} %"


def _shown(value: float | None, unit: Unit) -> str:
    if value is None:
        return UNKNOWN
    match unit:
        case "seconds":
            return format_duration(value)
        case "share":
            return format_ratio(value)
        case _:
            return f"{value:.1f} tok/s"

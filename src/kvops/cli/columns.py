"""Tables of the command line: on a narrow terminal whole columns go, never a part of a value; a pipe gets all."""

from __future__ import annotations

from collections.abc import Sequence

_GAP = 2


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, expendable: Sequence[str]
) -> None:
    """Leaves out `expendable` columns, the first of them first, until the rest fits; then lines wrap."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    kept = _fitting(columns, rows, expendable, console.width) if console.is_terminal else columns
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for column in kept:
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(*(cell for column, cell in zip(columns, row, strict=True) if column in kept))
    # rich cuts what is wider than its console; a terminal wraps it.
    Console(width=_width(kept, columns, rows)).print(table, soft_wrap=True)
    if left_out := [column for column in columns if column not in kept]:
        console.print(f"not shown for want of width: {', '.join(left_out)}", style="dim")


def _fitting(
    columns: Sequence[str], rows: Sequence[Sequence[str]], expendable: Sequence[str], room: int
) -> list[str]:
    kept = list(columns)
    for column in expendable:
        if _width(kept, columns, rows) <= room:
            break
        kept.remove(column)
    return kept


def _width(kept: Sequence[str], columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    from rich.cells import cell_len

    widths = [
        max(cell_len(cell) for cell in (column, *(row[at] for row in rows))) + _GAP
        for at, column in enumerate(columns)
        if column in kept
    ]
    return sum(widths)

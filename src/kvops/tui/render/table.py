"""Tables of fixed columns: where the width does not suffice, whole columns go, the least important first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from rich.text import Text

from kvops.tui import theme
from kvops.tui.text import fit

R = TypeVar("R")


@dataclass(frozen=True)
class Column(Generic[R]):
    title: str
    width: int
    cell: Callable[[R], Text]
    rank: int
    """The highest rank goes first."""
    align: str = "right"
    grow: int = 0
    """Cells this column may take of what is left over."""


def choose(columns: Sequence[Column[R]], width: int) -> list[Column[R]]:
    """The columns that fit into `width`, in order, with what is left over given to those that grow."""
    chosen = list(columns)
    while len(chosen) > 1 and _total(chosen) > width:
        chosen.remove(max(chosen, key=lambda column: column.rank))
    spare = max(0, width - _total(chosen))
    grown = []
    for column in chosen:
        extra = min(column.grow, spare)
        spare -= extra
        grown.append(replace(column, width=column.width + extra))
    return grown


def _total(columns: Sequence[Column[R]]) -> int:
    return sum(column.width for column in columns) + len(columns) - 1


def header(columns: Sequence[Column[R]]) -> Text:
    cells = (fit(Text(column.title), column.width, column.align).plain for column in columns)
    return Text(" ".join(cells), theme.LABEL)


def line(columns: Sequence[Column[R]], row: R) -> Text:
    return Text(" ").join(fit(column.cell(row), column.width, column.align) for column in columns)

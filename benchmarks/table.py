"""A measured row and how it is printed: the figure, what it is held against, the bar, and whether it is met."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Row:
    what: str
    measured: str
    against: str
    """The ceiling or peer of the same run."""
    value: float
    """The number that the bar speaks of, often a ratio."""
    bar: float
    at_least: bool
    unit: str = ""

    @property
    def met(self) -> bool:
        return self.value >= self.bar if self.at_least else self.value <= self.bar


def print_table(title: str, rows: Iterable[Row]) -> None:
    table = Table(title=title, title_justify="left")
    for column in ("what", "measured", "against", "value", "bar", ""):
        table.add_column(column, no_wrap=column != "what")
    for row in rows:
        sign = "≥" if row.at_least else "≤"
        table.add_row(
            row.what,
            row.measured,
            row.against,
            f"{row.value:.3g}{row.unit}",
            f"{sign} {row.bar:g}{row.unit}",
            "met" if row.met else "NOT MET",
        )
    Console(width=140).print(table)

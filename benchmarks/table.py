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
    aim: float | None = None
    """Beyond the bar, where there is one."""

    @property
    def verdict(self) -> str:
        if not self._reaches(self.bar):
            return "NOT MET"
        return "met" if self.aim is None or not self._reaches(self.aim) else "aim met"

    def _reaches(self, mark: float) -> bool:
        return self.value >= mark if self.at_least else self.value <= mark


def print_table(title: str, rows: Iterable[Row]) -> None:
    table = Table(title=title, title_justify="left")
    for column in ("what", "measured", "against", "value", "bar", "aim", ""):
        table.add_column(column, no_wrap=column not in ("what", "against"))
    try:
        for row in rows:
            sign = "≥" if row.at_least else "≤"
            table.add_row(
                row.what,
                row.measured,
                row.against,
                f"{row.value:.3g}{row.unit}",
                f"{sign} {row.bar:g}{row.unit}",
                "" if row.aim is None else f"{row.aim:g}{row.unit}",
                row.verdict,
            )
    finally:  # what was measured before something failed is shown
        Console(width=140).print(table)

"""How the numbers and tables of a report are written: a percentile that lacks samples says how many it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from kvops.load.statistics import LEAST_SAMPLES, Quantile
from kvops.units import format_duration, format_missing, format_whole

UNKNOWN = "–"
_NO_BOUND = 10_000


def seconds(value: Quantile, share: float) -> str:
    """The percentile at `share`, or what it lacks."""
    if value is None:
        return format_missing(LEAST_SAMPLES[share])
    return "failed" if value == "inf" else format_duration(float(value))


def counted(count: int, noun: str) -> str:
    """`1 request`, `12 requests`."""
    return f"{format_whole(count)} {noun}{'' if count == 1 else 's'}"


class Columns:
    """A table that shortens its cells, then gives up columns, the least wanted first, before it cuts one."""

    def __init__(
        self, titles: Sequence[str], *, give_up: Sequence[str] = (), prose: Sequence[str] = ()
    ) -> None:
        """`give_up`: titles in the order in which they go. `prose`: columns of text that wraps."""
        self._titles, self._give_up, self._prose = list(titles), list(give_up), set(prose)
        self._rows: list[Sequence[str | Text]] = []

    def add(self, *cells: str | Text) -> None:
        self._rows.append(cells)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.update(width=_NO_BOUND)
        for table in self._narrower():
            if Measurement.get(console, wide, table).minimum <= options.max_width:
                break
        yield table

    def _narrower(self) -> Iterator[Table]:
        yield self._table(self._titles, str)
        for gone in range(len(self._give_up) + 1):
            shown = [title for title in self._titles if title not in self._give_up[:gone]]
            yield self._table(shown, _folded)

    def _table(self, shown: Sequence[str], fold: Callable[[str], str]) -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for title in shown:
            cells = [self._cell(row, title, fold) for row in self._rows]
            prose = title in self._prose
            table.add_column(
                title,
                justify="left" if prose or title == self._titles[0] else "right",
                no_wrap=not prose,
                min_width=None if prose else _width([title, *map(str, cells)]),
            )
        for row in self._rows:
            table.add_row(*(self._cell(row, title, fold) for title in shown))
        return table

    def _cell(
        self, row: Sequence[str | Text], title: str, fold: Callable[[str], str]
    ) -> str | Text:
        cell = row[self._titles.index(title)]
        return fold(cell) if isinstance(cell, str) else cell


def _width(texts: Iterable[str]) -> int:
    return max(cell_len(line) for text in texts for line in text.split("\n"))


def _folded(text: str) -> str:
    """Of a percentile that lacks samples only how many: rows stay one line."""
    return text.removesuffix(" samples")

"""Progress of a long command on stderr: a bar on a terminal, one line a step elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import typer

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from kvops.models.sources import Progress as ToldProgress


@contextmanager
def shown_progress(unit: Literal["bytes", "tokens"] = "bytes") -> Iterator[ToldProgress]:
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    counts = {"bytes": (DownloadColumn(),), "tokens": (MofNCompleteColumn(), TimeRemainingColumn())}
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), *counts[unit])
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        yield _Bar(bars, bars.add_task("starting", total=None))


class _Lines:
    def step(self, what: str, total: int | None) -> None:
        typer.echo(f"{what} …", err=True)

    def advance(self, done: int) -> None:
        pass


class _Bar:
    def __init__(self, bars: Progress, task: TaskID) -> None:
        self._bars, self._task = bars, task

    def step(self, what: str, total: int | None) -> None:
        self._bars.remove_task(self._task)
        self._task = self._bars.add_task(what, total=total)

    def advance(self, done: int) -> None:
        self._bars.advance(self._task, done)

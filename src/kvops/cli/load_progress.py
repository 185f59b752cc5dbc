"""The running line of `kvops load run`: in place on a terminal, elsewhere a line when there is something new."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from kvops.load.launcher import Progress

LINE_EVERY = 5.0


class Display:
    """The running line: in place on a terminal, elsewhere a line when there is something new. Goes to stderr."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        from kvops.load.statistics import Tally

        console = Console(stderr=True)
        self._live = (
            Live("starting", console=console, transient=True) if console.is_terminal else None
        )
        self._last, self._shown, self._told_stopping = time.monotonic(), -1, False
        self._tally = Tally()

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, progress: Progress) -> None:
        if self._live is not None:
            self._live.update(self._line(progress))
        elif self._is_news(progress):
            self._told_stopping = progress.stopping
            self._last, self._shown = time.monotonic(), len(progress.records)
            typer.echo(self._line(progress), err=True)
            sys.stderr.flush()

    def _is_news(self, progress: Progress) -> bool:
        if progress.stopping:
            return not self._told_stopping
        due = time.monotonic() - self._last >= LINE_EVERY
        return due and len(progress.records) != self._shown

    def _line(self, progress: Progress) -> str:
        from kvops.load.launcher import STOP_TIMEOUT
        from kvops.load.reports.cells import seconds
        from kvops.units import format_duration

        self._tally.take(progress.records)
        flight = "" if progress.client is None else f", {progress.client.in_flight} in flight"
        counts = f"{self._tally.requests} requests, {self._tally.failed} failed{flight}"
        line = f"{format_duration(progress.elapsed)}: {counts}"
        if progress.stopping:
            return (
                f"{line}; stopping, those in flight have {STOP_TIMEOUT} s (Ctrl-C again ends them)"
            )
        return f"{line}, first token p50 {seconds(self._tally.ttft.p50, 0.50)}"

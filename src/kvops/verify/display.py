"""Where a run stands, on stderr: drawn in place on a terminal, a line a check elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from kvops.units import format_duration
from kvops.verify import words
from kvops.verify.estimates import Estimates, about, roughly
from kvops.verify.result import CheckResult
from kvops.verify.selection import PlannedCheck
from kvops.verify.table import mark

_SLOW = 15.0
"""Seconds from which a check is announced as it begins, where lines only tell of ends."""
_BAR = 20
_SHOWN = 4
"""Findings under the bar, the latest."""


class Display(Protocol):
    def begun(self, index: int, planned: PlannedCheck) -> None: ...

    def ended(self, index: int, result: CheckResult) -> None: ...


@contextmanager
def display(
    console: Console, checks: Sequence[PlannedCheck], estimates: Estimates, done: int = 0
) -> Iterator[Display]:
    """`done`: checks that an earlier part of the run has made."""
    if not console.is_terminal:
        yield Lines(console, len(checks), estimates, done)
        return
    shown = InPlace(console, len(checks), estimates, done)
    with Live(console=console, get_renderable=shown.render, refresh_per_second=4, transient=True):
        yield shown


class InPlace:
    def __init__(self, console: Console, count: int, estimates: Estimates, done: int) -> None:
        self._console, self._count, self._estimates = console, count, estimates
        self._done, self._now, self._since = done, "", time.monotonic()
        self._findings: list[CheckResult] = []

    def begun(self, index: int, planned: PlannedCheck) -> None:
        self._now = f"{planned.check.id}: {planned.check.title.lower()}"
        self._since = time.monotonic()

    def ended(self, index: int, result: CheckResult) -> None:
        self._done += 1
        self._estimates.ended(result)
        if result.verdict not in ("pass", "skip") and result.n:
            self._findings.append(result)

    def render(self) -> Group:
        running = time.monotonic() - self._since
        full = round(_BAR * self._done / self._count)
        wide = self._console.encoding.lower().startswith("utf")
        first = Text(("━" if wide else "=") * full, "green", no_wrap=True, overflow="ellipsis")
        first.append(("━" if wide else "-") * (_BAR - full), "dim")
        first.append(f" {self._done}/{self._count}  {roughly(self._estimates.left(running))}")
        second = Text(
            self._now or "asking the node about itself", no_wrap=True, overflow="ellipsis"
        )
        if self._now:
            second.append(f"  {running:.0f} s", "dim")
        return Group(first, second, *map(self._finding, self._findings[-_SHOWN:]))

    def _finding(self, result: CheckResult) -> Text:
        line = Text(no_wrap=True, overflow="ellipsis")
        line.append_text(mark(result.verdict, self._console))
        return line.append(f" {result.id}: ").append(words.why(result), "dim")


class Lines:
    """Where nothing can be drawn over, a line a check as it ends, and one before it where that takes long."""

    def __init__(self, console: Console, count: int, estimates: Estimates, done: int) -> None:
        self._console, self._count, self._estimates = console, count, estimates
        rest = count - done
        console.print(
            f"asking the node, then {rest} checks, {roughly(estimates.left())} …", highlight=False
        )

    def begun(self, index: int, planned: PlannedCheck) -> None:
        expected = self._estimates.of(planned.check.id)
        if expected >= _SLOW:
            line = self._line(index).append(f"…  {planned.check.id}")
            line.append(f"  takes {about(expected)}")
            self._console.print(line, soft_wrap=True)

    def ended(self, index: int, result: CheckResult) -> None:
        self._estimates.ended(result)
        line = self._line(index).append_text(mark(result.verdict, self._console))
        line.append(f"  {result.id}")
        if result.n:
            line.append(f"  {format_duration(result.took_seconds)}")
        if why := words.why(result):
            line.append(f"  {why}")
        if left := self._estimates.left():
            line.append(f"  {roughly(left)}")
        self._console.print(line, soft_wrap=True)

    def _line(self, index: int) -> Text:
        return Text(f"{index + 1:>{len(str(self._count))}}/{self._count} ")

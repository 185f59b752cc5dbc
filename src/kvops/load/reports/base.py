"""What each report offers, and the verdict they share. No data is never a pass."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar
from weakref import WeakKeyDictionary

import msgspec
from rich.console import RenderableType

from kvops.load import kept, soundness
from kvops.load.records import (
    CLIENT_FILE,
    REQUESTS_FILE,
    SERVER_FILE,
    ClientSample,
    RequestRecord,
    ServerSample,
)
from kvops.load.reports.plots import Missing, Plot
from kvops.load.runs import Run, RunInfo
from kvops.load.statistics.goodput import unsent
from kvops.printable import printable

T = TypeVar("T")
EXIT_CODES = {"pass": 0, "fail": 1, "inconclusive": 3}


class Verdict(msgspec.Struct, frozen=True):
    outcome: Literal["pass", "fail", "inconclusive"]
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What a reader should know, whatever the outcome."""
    met: tuple[str, ...] = ()
    """What a pass rests on: each criterion with what was seen."""


class RunData(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """What is kept of one run. Equal is only itself, so that what is worked out of it can be remembered with it."""

    folder: Path
    info: RunInfo
    records: Sequence[RequestRecord]
    client: Sequence[ClientSample]
    server: Sequence[ServerSample] = ()
    damage: tuple[str, ...] = ()
    """What of the files is lost: then the run is judged as partial."""


def once(work: Callable[[RunData], T]) -> Callable[[RunData], T]:
    """`work` of each run's data is done once, and forgotten with the data."""
    done: WeakKeyDictionary[RunData, T] = WeakKeyDictionary()

    @functools.wraps(work)
    def remembered(data: RunData) -> T:
        if data not in done:
            done[data] = work(data)
        return done[data]

    return remembered


class Report(Protocol):
    """A module with these three, and `plots(data) -> list[Plot | Missing]` where it has any of its own."""

    def judge(self, data: RunData) -> Verdict: ...

    def body(self, data: RunData) -> RenderableType: ...

    def facts(self, data: RunData) -> dict[str, Any]:
        """For `--json`."""
        ...


def read(run: Run) -> RunData:
    """What is kept of the run, half-written or not. Raises RunUnreadable."""
    folder = run.folder
    info, missing = soundness.whole_info(run.info)
    requests = soundness.requests(kept.read(folder / REQUESTS_FILE, RequestRecord), run.info)
    client = soundness.samples(kept.read(folder / CLIENT_FILE, ClientSample), CLIENT_FILE)
    server = soundness.samples(kept.read(folder / SERVER_FILE, ServerSample), SERVER_FILE)
    damage = (*missing, *requests.damage, *client.damage, *server.damage)
    return RunData(folder, info, requests.lines, client.lines, server.lines, damage)


def plots_of(report: Report, data: RunData) -> list[Plot | Missing]:
    """Those of its own."""
    own: Callable[[RunData], list[Plot | Missing]] = getattr(report, "plots", lambda _: [])
    return own(data)


def verdict(
    failures: Sequence[str],
    gaps: Sequence[str],
    notes: Sequence[str] = (),
    met: Sequence[str] = (),
) -> Verdict:
    """A failure decides; without one, whatever could not be judged does. `met` is told with a pass.

    Each becomes one line: some hold words of the node.
    """
    failures, gaps, told, shown = (
        tuple(map(printable, lines)) for lines in (failures, gaps, notes, met)
    )
    reasons = tuple(dict.fromkeys((*failures, *gaps)))
    if failures:
        return Verdict("fail", reasons, told)
    return Verdict("inconclusive", reasons, told) if gaps else Verdict("pass", (), told, shown)


def failure_lines(records: Sequence[RequestRecord], most: int = 5) -> list[str]:
    """The first kinds of failures, one line each with how often it came, and how many more failures there are.

    What the client had no room to send is no failure of the node's.
    """
    counts = Counter(_line(one) for one in records if one.failed and not unsent(one))
    shown = [
        line if count == 1 else f"{line} ({count} times)"
        for line, count in list(counts.items())[:most]
    ]
    left = counts.total() - sum(list(counts.values())[:most])
    return [*shown, f"and {left} more failures"] if left else shown


def _line(record: RequestRecord) -> str:
    return f"{record.name}: {record.error_class}: {record.error or 'no message'}"

"""Why a load run ended before its time: exit codes of the locust process, so that kvops can say it without a log."""

from __future__ import annotations

import enum


class Ending(enum.IntEnum):
    SCENARIO_BROKEN = 3
    NODE_GONE = 4
    DISK_FULL = 5
    NOT_OPENED = 6
    WORKER_LOST = 7

    @property
    def words(self) -> str:
        return _WORDS[self]


_WORDS = {
    Ending.SCENARIO_BROKEN: "the scenario raised an exception",
    Ending.NODE_GONE: "the node went away",
    Ending.DISK_FULL: "the records cannot be written",
    Ending.NOT_OPENED: "the run could not be opened",
    Ending.WORKER_LOST: "a worker went away",
}
MARK = "the run ends here: "
"""Before the reason, in locust's log."""


def reason(code: int, log: str) -> str | None:
    """What a locust that ended with `code` gave as the reason; None for a code that is none of ours."""
    if code not in list(map(int, Ending)):
        return None
    said = [line.partition(MARK)[2] for line in log.splitlines() if MARK in line]
    return said[0].strip() if said else Ending(code).words

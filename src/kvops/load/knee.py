"""The search for the largest load that meets the objectives: doubling, then halving the gap to the first that fails.

A first bad step is measured a second time, and so is the load that is found: a single slow moment is no knee. Where
two measurements disagree a third decides. A load counts only when no load at or under it was bad, whatever was seen
above.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

Outcome = Literal["good", "bad", "unclear"]
MAX_STEPS = 40
DEPTH = 16
"""So far under its start a search for a rate goes down."""


class Tried(msgspec.Struct, frozen=True):
    load: float
    outcome: Outcome


class Search:
    """Feed it with `take`, ask it with `next`."""

    def __init__(self, start: float, most: float, resolution: float, *, whole: bool) -> None:
        """`resolution`: how near, as a share of the first bad load. `whole`: loads are whole numbers of users."""
        self._start, self._most, self._resolution, self._whole = start, most, resolution, whole
        self.tried: list[Tried] = []

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Search:
        """As the options of a run say."""
        whole = options["by"] == "users"
        start = float(round(options["start"])) if whole else options["start"]
        return cls(start, options["most"], options["resolution"], whole=whole)

    def take(self, load: float, outcome: Outcome) -> None:
        self.tried.append(Tried(load, outcome))

    def next(self) -> float | None:
        """The load to try next; None when there is nothing more to find out."""
        if len(self.tried) >= MAX_STEPS or any(one.outcome == "unclear" for one in self.tried):
            return None
        if (tie := _tie(self.tried)) is not None:
            return tie
        good, bad = knee(self.tried), first_bad(self.tried)
        if bad is None:
            return self._higher(good)
        if self._times(bad) == 1 and self._first_of_all(bad):
            return bad
        if good is None:
            return self._lower(bad)
        middle = self._middle(good, bad)
        if middle is not None:
            return middle
        return good if self._times(good) == 1 else None

    def _higher(self, good: float | None) -> float | None:
        if good is None:
            return self._start
        if good < self._most:
            return min(2 * good, self._most)
        return good if self._times(good) == 1 else None

    def _lower(self, bad: float) -> float | None:
        """Half of a load that was bad, where nothing was good yet."""
        half = float(bad // 2) if self._whole else bad / 2
        return half if half >= (1 if self._whole else self._start / DEPTH) else None

    def _middle(self, good: float, bad: float) -> float | None:
        """A load between the two that is worth a step."""
        if bad - good <= self._resolution * bad:
            return None
        middle = (good + bad) / 2
        if self._whole:
            middle = float(round(middle))
        return middle if good < middle < bad else None

    def _times(self, load: float) -> int:
        return sum(one.load == load for one in self.tried)

    def _first_of_all(self, load: float) -> bool:
        return next(one for one in self.tried if one.outcome == "bad").load == load


def first_bad(tried: list[Tried]) -> float | None:
    """The smallest load that was not good more often than bad."""
    return min((load for load, lead in _leads(tried).items() if lead <= 0), default=None)


def knee(tried: list[Tried]) -> float | None:
    """The largest good load with no bad one at or under it."""
    bad = first_bad(tried)
    good = [load for load, lead in _leads(tried).items() if lead > 0]
    return max((load for load in good if bad is None or load < bad), default=None)


def unsteady(tried: list[Tried]) -> list[float]:
    """Loads that were good once and bad once."""
    good, bad = (
        {one.load for one in tried if one.outcome == outcome} for outcome in ("good", "bad")
    )
    return sorted(good & bad)


def contradictions(tried: list[Tried]) -> list[tuple[float, float]]:
    """Pairs (bad, good) where the larger load was good: more load looked better."""
    leads = _leads(tried)
    return [
        (low, high)
        for low in sorted(leads)
        for high in sorted(leads)
        if low < high and leads[low] <= 0 < leads[high]
    ]


def _tie(tried: list[Tried]) -> float | None:
    """A load whose measurements disagree and none of which decides."""
    return next((load for load, lead in _leads(tried).items() if lead == 0), None)


def _leads(tried: list[Tried]) -> dict[float, int]:
    """How many times more often good than bad, by load; what was unclear has no say."""
    leads: dict[float, int] = {}
    for one in tried:
        if one.outcome != "unclear":
            leads[one.load] = leads.get(one.load, 0) + (1 if one.outcome == "good" else -1)
    return leads

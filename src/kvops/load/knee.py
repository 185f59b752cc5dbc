"""The search for the largest load that meets the objectives: doubling, then halving the gap to the first that fails.

A first bad step is measured a second time, and so is the load that is found: a single slow moment is no knee. A load
counts only when no load at or under it was bad, whatever was seen above.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

Outcome = Literal["good", "bad", "unclear"]
MAX_STEPS = 40


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
        good, bad = knee(self.tried), first_bad(self.tried)
        if bad is None:
            return self._higher(good)
        if self._times(bad) == 1 and self._first_of_all(bad):
            return bad
        middle = self._middle(good or 0.0, bad)
        if middle is not None:
            return middle
        return good if good is not None and self._times(good) == 1 else None

    def _higher(self, good: float | None) -> float | None:
        if good is None:
            return self._start
        if good < self._most:
            return min(2 * good, self._most)
        return good if self._times(good) == 1 else None

    def _middle(self, good: float, bad: float) -> float | None:
        """A load between the two that is worth a step; under the start there is none."""
        if good == 0 or bad - good <= self._resolution * bad:
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
    """The smallest load that was bad at any time."""
    return min((one.load for one in tried if one.outcome == "bad"), default=None)


def knee(tried: list[Tried]) -> float | None:
    """The largest good load with no bad one at or under it."""
    bad = first_bad(tried)
    good = [one.load for one in tried if one.outcome == "good" and (bad is None or one.load < bad)]
    return max(good, default=None)


def contradictions(tried: list[Tried]) -> list[tuple[float, float]]:
    """Pairs (bad, good) where the larger or equal load was good: more load looked better."""
    bad = sorted({one.load for one in tried if one.outcome == "bad"})
    good = sorted({one.load for one in tried if one.outcome == "good"})
    return [(low, high) for low in bad for high in good if high >= low]

"""How fast counters rise over the last seconds, by Prometheus's own sums, so that both fire at the same time.

Bounded: a window keeps about 240 samples of a series whatever the interval, and a reset
between two samples is counted even when those are let go.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from kvops.alerts.readings import Series

_POINTS = 240


class _Point(NamedTuple):
    at: float
    value: float
    """As it was read."""
    risen: float
    """All that the series has risen since it was first seen."""
    number: int
    """How many samples came before it, those included that were let go."""


@dataclass
class _Line:
    points: deque[_Point] = field(default_factory=deque)

    def add(self, at: float, value: float, spacing: float) -> None:
        if not self.points:
            self.points.append(_Point(at, value, 0.0, 0))
            return
        last = self.points[-1]
        step = value if value < last.value else value - last.value
        point = _Point(at, value, last.risen + step, last.number + 1)
        # The newest is always kept; the one before gives way where it stands too close to be of use.
        if len(self.points) > 1 and last.at - self.points[-2].at < spacing:
            self.points.pop()
        self.points.append(point)

    def forget(self, before: float) -> None:
        while self.points and self.points[0].at < before:
            self.points.popleft()


@dataclass
class RisingWindow:
    """One counter over the last `seconds`."""

    seconds: float
    _lines: dict[str, _Line] = field(default_factory=dict)
    _seen_at: float | None = None

    def add(self, at: float, series: Series) -> None:
        """`at` must not fall. A series that turns up later has been 0 until then."""
        for key, value in series.items():
            line = self._lines.get(key)
            if line is None:
                line = self._lines[key] = _Line()
                if self._seen_at is not None:
                    line.add(self._seen_at, 0.0, 0.0)
            line.add(at, value, self.seconds / _POINTS)
        self._seen_at = at

    def forget_all(self) -> None:
        """What was before cannot be compared with what comes."""
        self._lines, self._seen_at = {}, None

    def increase(self, now: float) -> float | None:
        """Over the window, all series together; None before two samples of any.

        Prometheus's `increase`, which extrapolates to the ends of the window (promql/functions.go, extrapolatedRate).
        """
        for line in self._lines.values():
            line.forget(now - self.seconds)
        parts = [
            _extrapolated(line.points, now - self.seconds, now)
            for line in self._lines.values()
            if len(line.points) > 1
        ]
        return sum(parts) if parts else None

    def rate(self, now: float) -> float | None:
        """Per second."""
        increase = self.increase(now)
        return None if increase is None else increase / self.seconds


def _extrapolated(points: deque[_Point], start: float, end: float) -> float:
    first, last = points[0], points[-1]
    rise, covered = last.risen - first.risen, last.at - first.at
    if covered <= 0:
        return 0.0
    between = covered / (last.number - first.number)
    before, after = first.at - start, end - last.at
    if rise > 0 and first.value >= 0:
        before = min(before, covered * first.value / rise)  # a counter was never below zero
    reach = covered
    for gap in (before, after):
        reach += gap if gap < 1.1 * between else between / 2
    return rise * reach / covered

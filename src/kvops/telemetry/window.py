"""Exact percentiles and rates over the last minutes. Memory is bounded; too few samples give None, never a guess."""

from __future__ import annotations

from collections import deque
from math import ceil

from kvops.telemetry.snapshot import Percentiles

MAX_SAMPLES = 100_000
_NEEDED = {0.50: 5, 0.95: 20, 0.99: 100}


def percentiles(values: list[float]) -> Percentiles:
    """Nearest-rank percentiles: each is a value that was measured."""
    ordered = sorted(values)

    def rank(quantile: float) -> float | None:
        if len(ordered) < _NEEDED[quantile]:
            return None
        return ordered[ceil(quantile * len(ordered)) - 1]

    return Percentiles(
        samples=len(ordered),
        p50=rank(0.50),
        p95=rank(0.95),
        p99=rank(0.99),
        max=ordered[-1] if ordered else None,
    )


class SlidingWindow:
    """Samples of the last `seconds`, at most MAX_SAMPLES of them (the newest)."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._samples: deque[tuple[float, float]] = deque(maxlen=MAX_SAMPLES)

    def add(self, value: float, now: float) -> None:
        self._samples.append((now, value))

    def values(self, now: float) -> list[float]:
        self._forget(now)
        return [value for _, value in self._samples]

    def percentiles(self, now: float) -> Percentiles:
        return percentiles(self.values(now))

    def total(self, now: float) -> float:
        return sum(self.values(now))

    def _forget(self, now: float) -> None:
        while self._samples and self._samples[0][0] < now - self.seconds:
            self._samples.popleft()


class RateWindow:
    """A sum over the last `seconds`, kept in one bucket a second: O(seconds) memory at any rate."""

    def __init__(self, seconds: int) -> None:
        self.seconds = seconds
        self._buckets: deque[list[float]] = deque()

    def add(self, amount: float, now: float) -> None:
        second = int(now)
        if self._buckets and self._buckets[-1][0] == second:
            self._buckets[-1][1] += amount
        else:
            self._buckets.append([second, amount])
            self._forget(now)

    def total(self, now: float) -> float:
        self._forget(now)
        return sum(amount for _, amount in self._buckets)

    def _forget(self, now: float) -> None:
        while self._buckets and self._buckets[0][0] <= int(now) - self.seconds:
            self._buckets.popleft()

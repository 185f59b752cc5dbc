"""Whether a measure drifts: a slope that outliers cannot pull, with its confidence."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from kvops.load.statistics.percentiles import Values

LEAST_POINTS = 8
QUARTERS = 4
MOST_POINTS = 200
"""Pairs of points grow with the square: more points are taken together in groups, by their medians."""


class Trend(msgspec.Struct, frozen=True, kw_only=True):
    """Of values over time: units a second."""

    points: int
    slope: float
    low: float
    high: float
    """Ends of the slope's confidence interval."""
    level: float
    """Median of the values."""
    span: float
    """Seconds from the first to the last point."""

    @property
    def is_flat(self) -> bool:
        """The interval holds no slope at all, or what is seen at the ends goes the other way."""
        return self.low <= 0 <= self.high or self.slope * (self.end - self.start) < 0

    start: float
    """Median of the values in the first quarter of the points, and in the last."""
    end: float
    apart: float
    """Seconds between the middles of these quarters."""

    @property
    def change(self) -> float | None:
        """From the start to the end, relative to the start; None where that is nothing."""
        return (self.end - self.start) / abs(self.start) if self.start else None

    @property
    def surest(self) -> float:
        """The least of the change, in units of the values, that the slope's interval allows: 0 when it is flat."""
        nearest = 0.0 if self.is_flat else min(self.low, self.high, key=abs)
        return nearest * self.apart

    @property
    def surest_change(self) -> float | None:
        """As `surest`, relative to the start."""
        return self.surest / abs(self.start) if self.start else None


def trend(
    times: Sequence[float] | Values,
    values: Sequence[float] | Values,
    confidence: float = 0.95,
    points: int = MOST_POINTS,
) -> Trend | None:
    """Theil–Sen slope (Sen 1968) of the medians of at most `points` groups; None from fewer than 8 points."""
    from scipy.stats import theilslopes

    at, level = np.asarray(times, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if len(at) < LEAST_POINTS or at.max() == at.min():
        return None
    order = np.argsort(at, kind="stable")
    groups = np.array_split(order, min(points, len(at)))
    x = np.array([np.median(at[group]) for group in groups])
    y = np.array([np.median(level[group]) for group in groups])
    found = theilslopes(y, x, alpha=confidence)
    quarter = max(1, len(groups) // QUARTERS)
    first, last = (np.concatenate(some) for some in (groups[:quarter], groups[-quarter:]))
    return Trend(
        points=len(groups), slope=float(found.slope), low=float(found.low_slope), high=float(found.high_slope),
        level=float(np.median(level)), span=float(at.max() - at.min()),
        start=float(np.median(level[first])), end=float(np.median(level[last])),
        apart=float(np.median(at[last]) - np.median(at[first])),
    )  # fmt: skip

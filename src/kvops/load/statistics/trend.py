"""Whether a measure drifts: a slope that outliers cannot pull, with its confidence."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from kvops.load.statistics.percentiles import Values

LEAST_POINTS = 8
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
        """The interval holds no slope at all."""
        return self.low <= 0 <= self.high

    @property
    def change(self) -> float | None:
        """Over the span, relative to the level; None without a level."""
        return self.slope * self.span / abs(self.level) if self.level else None

    @property
    def surest_change(self) -> float | None:
        """The least of the change that the interval allows: 0 when it is flat."""
        nearest = 0.0 if self.is_flat else min(self.low, self.high, key=abs)
        return nearest * self.span / abs(self.level) if self.level else None


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
    return Trend(
        points=len(groups), slope=float(found.slope), low=float(found.low_slope), high=float(found.high_slope),
        level=float(np.median(level)), span=float(at.max() - at.min()),
    )  # fmt: skip

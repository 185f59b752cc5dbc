"""Whether a measure got better or worse between two samples: a test, and a floor under which a change is no change.

Worse (or better) is a shift that a Mann–Whitney test tells from none and that is larger than the tolerance. Same is
shown, not assumed: the confidence interval of the shift lies within the tolerance. Between the two the samples are
too few to tell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from kvops.load.statistics.confidence import wilson
from kvops.load.statistics.percentiles import Values, rank
from kvops.units import format_ratio

Outcome = Literal["better", "same", "worse", "too few"]
Direction = Literal["lower", "higher"]
"""Which is better."""

CONFIDENCE = 0.95
TOLERANCE = 0.10
SHARE_TOLERANCE = 0.01
TAIL_TOLERANCE = 0.05
LEAST = 5
"""Values on each side: below, no arrangement of ranks is unlikely enough."""
THINNED = 1000
"""Values of a side that enter the pairwise differences: evenly spaced order statistics of more."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Of `after` against `before`. Shifts are shares of the median before, or differences of two shares."""

    outcome: Outcome
    before: float | None
    """Median, or share; None without values or where it falls on a failure."""
    after: float | None
    before_samples: int
    after_samples: int
    shift: float | None = None
    """Hodges–Lehmann estimate; positive is up. None where a failure stands there."""
    shift_low: float | None = None
    shift_high: float | None = None
    """Ends of its confidence interval; None where a failure stands there."""
    p_value: float | None = None
    """Of no difference."""
    cliffs_delta: float | None = None
    """Probability that a value after is above one before, less that it is below: -1..1."""
    direction: Direction
    tolerance: float
    confidence: float

    def __str__(self) -> str:
        ends = [_signed(end) for end in (self.shift_low, self.shift_high)]
        interval = f"{_signed(self.shift)}, {self.confidence:.0%} interval {ends[0]} to {ends[1]}"
        if self.p_value is None and self.shift is None:
            return (
                f"{self.outcome}: {self.before_samples} values before, {self.after_samples} after"
            )
        return f"{self.outcome}: {interval}, tolerance {format_ratio(self.tolerance)}"


def compare(
    before: Sequence[float] | Values,
    after: Sequence[float] | Values,
    *,
    direction: Direction = "lower",
    tolerance: float = TOLERANCE,
    confidence: float = CONFIDENCE,
) -> Comparison:
    """Two samples of a measure; `math.inf` stands for a failure. `tolerance` is a share of the median before."""
    old, new = _ordered(before), _ordered(after)
    middle = _median(old)
    told = Comparison(
        outcome="too few", before=_finite(middle), after=_finite(_median(new)), before_samples=len(old),
        after_samples=len(new), direction=direction, tolerance=tolerance, confidence=confidence,
    )  # fmt: skip
    if min(len(old), len(new)) < LEAST or not math.isfinite(middle):
        return told
    if middle == 0:
        # A share of nothing says nothing; without any change there is none to express.
        return told if old.any() or new.any() else msgspec.structs.replace(told, outcome="same")
    shift, low, high = (end / abs(middle) for end in _shift(old, new, confidence))
    p_value, delta = _rank_test(old, new)
    outcome = _outcome(shift, low, high, tolerance, direction)
    if outcome != "same" and p_value > 1 - confidence:
        outcome = "too few"
    return msgspec.structs.replace(
        told, outcome=outcome, shift=_finite(shift),
        shift_low=_finite(low), shift_high=_finite(high), p_value=p_value, cliffs_delta=delta,
    )  # fmt: skip


def compare_shares(
    before: tuple[int, int],
    after: tuple[int, int],
    *,
    direction: Direction = "lower",
    tolerance: float = SHARE_TOLERANCE,
    confidence: float = CONFIDENCE,
) -> Comparison:
    """Two counts `(hits, n)`, such as failures of requests. `tolerance` is a difference of shares.

    The interval is Newcombe's, from Wilson's of each share (Newcombe 1998, method 10).
    """
    told = Comparison(
        outcome="too few", before=_share(before), after=_share(after), before_samples=before[1],
        after_samples=after[1], direction=direction, tolerance=tolerance, confidence=confidence,
    )  # fmt: skip
    ends = wilson(*before, confidence), wilson(*after, confidence)
    if told.before is None or told.after is None or ends[0] is None or ends[1] is None:
        return told
    shift = told.after - told.before
    low = shift - math.hypot(told.after - ends[1][0], ends[0][1] - told.before)
    high = shift + math.hypot(ends[1][1] - told.after, told.before - ends[0][0])
    return msgspec.structs.replace(
        told, outcome=_outcome(shift, low, high, tolerance, direction), shift=shift,
        shift_low=low, shift_high=high,
    )  # fmt: skip


def compare_tails(
    before: Sequence[float] | Values,
    after: Sequence[float] | Values,
    *,
    share: float = 0.95,
    tolerance: float = TOLERANCE,
    confidence: float = CONFIDENCE,
) -> Comparison:
    """Slow values, which medians and ranks do not see: the share over the old `share` percentile and its tolerance.

    Worse is a share over it that grew by more than 5 points.
    """
    old, new = _ordered(before), _ordered(after)
    bound = float(old[rank(len(old), share)]) * (1 + tolerance) if len(old) else math.nan
    return compare_shares(
        (_over(old, bound), len(old)),
        (_over(new, bound), len(new)),
        tolerance=TAIL_TOLERANCE,
        confidence=confidence,
    )


def _over(values: Values, bound: float) -> int:
    """A failure is over any bound, even where the bound itself is one."""
    return int(((values > bound) | np.isinf(values)).sum())


def _ordered(values: Sequence[float] | Values) -> Values:
    return np.sort(np.asarray(values, dtype=np.float64))


def _share(hits: tuple[int, int]) -> float | None:
    return hits[0] / hits[1] if hits[1] else None


def _outcome(
    shift: float, low: float, high: float, tolerance: float, direction: Direction
) -> Outcome:
    if -tolerance <= low and high <= tolerance:
        return "same"
    if low <= 0 <= high or abs(shift) <= tolerance:
        return "too few"
    return "worse" if (shift > 0) == (direction == "lower") else "better"


def _rank_test(old: Values, new: Values) -> tuple[float, float]:
    """Two-sided p of Mann–Whitney, and Cliff's delta."""
    from scipy.stats import mannwhitneyu

    found = mannwhitneyu(new, old, alternative="two-sided")
    return float(found.pvalue), 2 * float(found.statistic) / (len(old) * len(new)) - 1


def _shift(old: Values, new: Values, confidence: float) -> tuple[float, float, float]:
    """Hodges–Lehmann shift and its interval (Moses): order statistics of all pairwise differences."""
    from scipy.special import ndtri

    with np.errstate(invalid="ignore"):
        apart = np.subtract.outer(_thin(new), _thin(old)).ravel()
    apart = np.sort(np.nan_to_num(apart, nan=0.0, posinf=math.inf, neginf=-math.inf))
    pairs = len(old) * len(new)
    spread = float(ndtri((1 + confidence) / 2)) * math.sqrt(pairs * (len(old) + len(new) + 1) / 12)
    tail = max(0.0, 0.5 - spread / pairs)
    low, high = (apart[rank(len(apart), share)] for share in (tail, 1 - tail))
    return _median(apart), float(low), float(high)


def _thin(ordered: Values) -> Values:
    if len(ordered) <= THINNED:
        return ordered
    return ordered[((np.arange(THINNED) + 0.5) * len(ordered) / THINNED).astype(np.int64)]


def _median(ordered: Values) -> float:
    if not len(ordered):
        return math.nan
    low, high = float(ordered[(len(ordered) - 1) // 2]), float(ordered[len(ordered) // 2])
    return low if low == high else (low + high) / 2


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _signed(share: float | None) -> str:
    return "a failure" if share is None else f"{100 * share:+.1f} %"

"""What may be claimed from a number of samples, and with what confidence."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import msgspec

from kvops.load.statistics.percentiles import Values, as_array

CONFIDENCE = 0.99
"""Of a claim about a percentile, as MLPerf's early stopping has it."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """Whether "the `share` percentile is at or under `bound`" follows from the samples."""

    outcome: Literal["holds", "refuted", "too few"]
    share: float
    bound: float
    """Seconds, or whatever the values are."""
    samples: int
    """Values and failures together."""
    over: int
    """Of them over the bound, failures among them."""
    needed: int
    """Fewest samples from which the claim would follow with no more than `over` over the bound."""
    confidence: float

    def __str__(self) -> str:
        over = f"{self.over} of {self.samples} over it"
        match self.outcome:
            case "holds":
                return f"shown with {self.confidence:.0%} confidence ({over})"
            case "refuted":
                return f"refuted with {self.confidence:.0%} confidence ({over})"
            case _:
                return f"not shown ({over}; needs {self.needed} samples with no more over it)"


def claim(
    values: Iterable[float] | Values,
    failures: int,
    share: float,
    bound: float,
    confidence: float = CONFIDENCE,
) -> Claim:
    """Judge "p`share` <= `bound`" where each failure counts as over the bound. Raises as `claim_of`."""
    sample = as_array(values)
    over = int((sample > bound).sum()) + failures
    return claim_of(over, len(sample) + failures, share, bound, confidence)


def claim_of(
    over: int, count: int, share: float, bound: float, confidence: float = CONFIDENCE
) -> Claim:
    """Judge "p`share` <= `bound`" where `over` of `count` samples are over the bound.

    The number over the bound among n independent samples is binomial. The claim holds when so few would be seen with
    at most 1 - `confidence` if the true share over the bound were 1 - `share` (MLPerf inference policies, "Early
    stopping criterion"); it is refuted when so many would be. Raises ValueError for a share outside (0, 1).
    """
    from scipy.special import bdtr

    allowed, needed = 1 - confidence + 1e-12, minimum_samples(share, over, confidence)
    at_least = 1.0 if over == 0 else 1 - float(bdtr(over - 1, count, 1 - share))
    outcome: Literal["holds", "refuted", "too few"] = "too few"
    if count >= needed:
        outcome = "holds"
    elif at_least <= allowed:
        outcome = "refuted"
    return Claim(
        outcome=outcome, share=share, bound=bound, samples=count, over=over, needed=needed,
        confidence=confidence,
    )  # fmt: skip


def minimum_samples(share: float, over: int = 0, confidence: float = CONFIDENCE) -> int:
    """Smallest n with BinomCDF(`over`; n, 1 - `share`) <= 1 - `confidence`: 459 for p99 with none over the bound.

    Raises ValueError for a share outside (0, 1).
    """
    from scipy.special import bdtr

    if not 0 < share < 1:
        raise ValueError(f"share {share} is not between 0 and 1")
    low, high = over, max(64, 2 * over)
    while bdtr(over, high, 1 - share) > 1 - confidence:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if bdtr(over, middle, 1 - share) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high


def wilson(hits: int, n: int, confidence: float = 0.95) -> tuple[float, float] | None:
    """Wilson's interval of a share (Wilson 1927); None without samples."""
    from scipy.special import ndtri

    if n == 0:
        return None
    share, z = hits / n, float(ndtri((1 + confidence) / 2))
    centre = share + z * z / (2 * n)
    spread = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    below, above = ((centre + sign * spread) / (1 + z * z / n) for sign in (-1, 1))
    return max(0.0, below), min(1.0, above)


def wilson_lower(hits: int, n: int) -> float | None:
    """Lower end of Wilson's 95 % interval; None without samples."""
    interval = wilson(hits, n)
    return None if interval is None else interval[0]

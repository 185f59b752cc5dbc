"""Is one share of right answers lower than another? Exact where numbers are small, which they are for long prompts."""

from __future__ import annotations

import math

import msgspec


class Counted(msgspec.Struct, frozen=True):
    """`hits` of `n`."""

    hits: int
    n: int

    @property
    def share(self) -> float:
        return self.hits / self.n if self.n else 0.0

    def __str__(self) -> str:
        return f"{self.hits}/{self.n}"


def ratio(one: Counted, other: Counted) -> float:
    """Of the share of `one` to that of `other`."""
    return one.share / other.share if other.share else math.inf


def against_ratio(one: Counted, other: Counted, supposed: float) -> float:
    """How much likelier the counts are as they are than at best if the ratio of the shares were `supposed`, as a log.

    The log of the likelihood ratio, with the shares that a ratio leaves at their likeliest (Koopman 1984, Miettinen and
    Nurminen 1985). 0: it fits as well as any; twice it is about chi-squared with one degree of freedom.
    """
    base = _likeliest(one, other, supposed)
    free = _log_likelihood(one, one.share) + _log_likelihood(other, other.share)
    bound = _log_likelihood(one, supposed * base) + _log_likelihood(other, base)
    return max(0.0, free - bound)


def _likeliest(one: Counted, other: Counted, supposed: float) -> float:
    """The share of `other` under which the counts are likeliest when that of `one` is `supposed` times it."""
    a = (one.n + other.n) * supposed
    b = one.n * supposed + one.hits + other.n + other.hits * supposed
    c = one.hits + other.hits
    return min(1.0, (b - math.sqrt(max(0.0, b * b - 4 * a * c))) / (2 * a))


def _log_likelihood(counted: Counted, share: float) -> float:
    hits, misses = counted.hits, counted.n - counted.hits
    share = min(1 - 1e-12, max(1e-12, share))
    return hits * math.log(share) + misses * math.log1p(-share)


def so_few_by_chance(one: Counted, other: Counted) -> float:
    """Probability of so few hits in `one` if both had the same share: Fisher's exact test, one-sided."""
    total, hits = one.n + other.n, one.hits + other.hits
    ways = sum(
        math.comb(one.n, few) * math.comb(other.n, hits - few)
        for few in range(max(0, hits - other.n), one.hits + 1)
    )
    return ways / math.comb(total, hits)


def so_few_of(one: Counted, share: float) -> float:
    """Probability of so few hits if each were one with the probability `share`."""
    return sum(
        math.comb(one.n, few) * share**few * (1 - share) ** (one.n - few)
        for few in range(one.hits + 1)
    )

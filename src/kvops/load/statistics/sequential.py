"""What may be claimed of a percentile while samples still come, and one looks again and again.

Each look is a chance to be wrong. Looks are therefore few, at sizes that grow by half, and each spends a part of the
error that the confidence leaves (alpha spending, Lan and DeMets 1983): over all looks together, what is claimed is
wrong no more often than it says. Most of it is spent on the first look that can show the claim, so that samples of
which none is over the bound are soon enough.
"""

from __future__ import annotations

import functools
import math

import msgspec
import numpy as np

from kvops.load.statistics.confidence import Claim, claim_of, minimum_samples
from kvops.load.statistics.goodput import NOTHING, OVER, Marks
from kvops.load.statistics.percentiles import Values

GROWTH = 1.5
LOOKS = 12
FIRST = 0.8
"""Of the error, for the first look that can show the claim; each later one spends half of what is left."""
REACH = 12.0
"""Standard deviations over its mean to which a count is followed."""


class Look(msgspec.Struct, frozen=True):
    samples: int
    holds: int
    """Most that may be over the bound for the claim to hold; -1: none may."""
    refuted: int
    """Fewest over the bound that refute it."""


def first_samples(share: float, confidence: float) -> int:
    """Fewest that can show the claim, none of them over the bound: 36 for p95 at 80 % confidence."""
    return minimum_samples(share, 0, 1 - FIRST * (1 - confidence))


@functools.lru_cache(maxsize=512)
def looks(share: float, confidence: float, least: int) -> tuple[Look, ...]:
    """The first one at `least` samples: until then nothing is decided."""
    shown, error = first_samples(share, confidence), 1 - confidence
    start = max(least, shown)
    sizes = [least] if least < shown else []
    sizes += [math.ceil(start * GROWTH**at) for at in range(LOOKS)]
    early = len(sizes) - LOOKS
    good = [0.0] * early + [error * (1 - (1 - FIRST) * 0.5**at) for at in range(LOOKS)]
    bad = [error * (1 - 0.5 ** (at + 1)) for at in range(len(sizes))]
    pairs = zip(_most(sizes, 1 - share, good), _fewest(sizes, 1 - share, bad), strict=True)
    return tuple(Look(n, *pair) for n, pair in zip(sizes, pairs, strict=True))


def sequential(marks: Marks, share: float, bound: float, confidence: float, least: int) -> Claim:
    """Judge "p`share` <= `bound`" by samples in the order of their sending: the first look that decides it has the say.

    A claim that no look decides is "too few".
    """
    over = (marks[marks != NOTHING] == OVER).cumsum()
    plan = looks(share, confidence, least)
    for look in plan:
        if look.samples > len(over):
            break
        seen = int(over[look.samples - 1])
        if seen <= look.holds or seen >= look.refuted:
            return Claim(
                outcome="holds" if seen <= look.holds else "refuted", share=share, bound=bound,
                samples=look.samples, over=seen, needed=look.samples, confidence=confidence,
            )  # fmt: skip
    seen = int(over[-1]) if len(over) else 0
    told = claim_of(seen, len(over), share, bound, confidence)
    wanted = (one.samples for one in plan if one.samples > len(over) and one.holds >= seen)
    return msgspec.structs.replace(told, outcome="too few", needed=next(wanted, told.needed))


def _most(sizes: list[int], chance: float, spent: list[float]) -> list[int]:
    """At each look the most over the bound with which the claim holds, at the worst true share that may not hold."""
    found, state, at, used = [], np.array([1.0]), 0, 0.0
    for size, may in zip(sizes, spent, strict=True):
        state, at = _further(state, at, size, chance, sizes[-1]), size
        below = np.cumsum(state)
        most = int(np.searchsorted(below, may - used + 1e-12, side="right")) - 1
        if most >= 0:
            used += float(below[most])
            state[: most + 1] = 0.0
        found.append(most)
    return found


def _fewest(sizes: list[int], chance: float, spent: list[float]) -> list[int]:
    """At each look the fewest over the bound that refute the claim, at the largest true share that it allows."""
    found, state, at, used = [], np.array([1.0]), 0, 0.0
    for size, may in zip(sizes, spent, strict=True):
        state, at = _further(state, at, size, chance, sizes[-1]), size
        above = np.cumsum(state[::-1])[::-1]
        fewest = int(np.searchsorted(-above, -(may - used + 1e-12), side="left"))
        if fewest < len(above):
            used += float(above[fewest])
            state[fewest:] = 0.0
        found.append(fewest)
    return found


def _further(state: Values, at: int, size: int, chance: float, last: int) -> Values:
    """The chances of each count over the bound, of the undecided runs, some samples on; counts beyond all are cut."""
    most = math.ceil(last * chance + REACH * math.sqrt(last * chance * (1 - chance))) + 1
    grown: Values = np.convolve(state, _binomial(size - at, chance, most))[: most + 1]
    return grown


def _binomial(count: int, chance: float, most: int) -> Values:
    """The chances of 0, 1 … `most` of `count`."""
    from scipy.special import (
        gammaln,  # scipy.stats takes a second to import, in the midst of a load
    )

    k = np.arange(min(count, most) + 1)
    ways = gammaln(count + 1) - gammaln(k + 1) - gammaln(count - k + 1)
    found: Values = np.exp(ways + k * math.log(chance) + (count - k) * math.log1p(-chance))
    return found

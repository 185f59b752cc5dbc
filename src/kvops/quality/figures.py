"""From what was measured to figures: perplexity, its cost against the reference, agreement and recall."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec


class Cost(msgspec.Struct, frozen=True):
    perplexity: float
    reference: float
    margin: float
    """Two standard errors of perplexity / reference."""


def perplexity(losses: Sequence[float]) -> float:
    """exp of the mean -ln p."""
    return math.exp(statistics.fmean(losses))


def cost(losses: Sequence[float], reference: Sequence[float]) -> Cost:
    """Both on the same tokens. The ratio is exp of the mean difference a token, whose standard error is that of
    paired samples: what makes a text hard is the same on both sides and falls out."""
    differences = [one - other for one, other in zip(losses, reference, strict=True)]
    ratio = math.exp(statistics.fmean(differences))
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    return Cost(perplexity(losses), perplexity(reference), 2 * error * ratio)


def agreement(likeliest: Sequence[int], reference: Sequence[int]) -> float:
    """Share of places with the same likeliest token."""
    pairs = list(zip(likeliest, reference, strict=True))
    return sum(one == other for one, other in pairs) / len(pairs)

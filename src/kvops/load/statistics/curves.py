"""What a cost may grow to with the length of a prompt, and where it jumps beyond that.

Reading a prompt of n tokens takes a + b·n + c·n² (a request's own cost, the linear layers, attention), the step of an
output token p + q·n. All are costs, so none is negative: fitted by non-negative least squares (Lawson and Hanson 1974)
with relative weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

LEAST_TO_FIT = 3
"""Lengths below which a curve says nothing of the next."""


class Step(msgspec.Struct, frozen=True):
    """From one length to the next: what it cost, and what all shorter ones predict."""

    index: int
    """Of `length` in the order of lengths."""
    before: float
    """The length before, tokens."""
    length: float
    seconds_before: float
    seconds: float
    predicted: float

    @property
    def times(self) -> float:
        """Over what is predicted."""
        return self.seconds / self.predicted

    @property
    def grew(self) -> float:
        return self.seconds / self.seconds_before

    @property
    def may_grow(self) -> float:
        return self.predicted / self.seconds_before


def fit(lengths: Sequence[float], seconds: Sequence[float], degree: int) -> tuple[float, ...]:
    """Coefficients of 1, n … n^degree, none negative, in seconds per token^k."""
    from scipy.optimize import nnls

    n, t = np.asarray(lengths, float), np.asarray(seconds, float)
    powers = np.vander(n / n.max(), degree + 1, increasing=True)
    weights = 1 / np.maximum(t, 1e-9)
    found, _ = nnls(powers * weights[:, None], t * weights)
    return tuple(float(c / n.max() ** k) for k, c in enumerate(found))


def predicted(lengths: Sequence[float], seconds: Sequence[float], degree: int, at: float) -> float:
    """Seconds at a length beyond those measured: by the fit, or with too few by the highest power alone."""
    steepest = seconds[-1] * (at / lengths[-1]) ** degree
    if len(lengths) < LEAST_TO_FIT:
        return float(steepest)
    fitted = sum(c * at**k for k, c in enumerate(fit(lengths, seconds, degree)))
    return float(min(max(fitted, seconds[-1]), steepest))


def steps(lengths: Sequence[float], seconds: Sequence[float], degree: int) -> list[Step]:
    """One between each two neighbours of `lengths`, which ascend; no cost is 0."""
    return [
        Step(
            index, lengths[index - 1], lengths[index], seconds[index - 1], seconds[index],
            predicted(lengths[:index], seconds[:index], degree, lengths[index]),
        )
        for index in range(1, len(lengths))
    ]  # fmt: skip


def first_jump(
    lengths: Sequence[float], seconds: Sequence[float], degree: int, factor: float, floor: float
) -> Step | None:
    """Where a cost is over `factor` times what the shorter lengths predict, and `floor` seconds more than it."""
    return next(
        (
            step
            for step in steps(lengths, seconds, degree)
            if step.times > factor and step.seconds - step.predicted > floor
        ),
        None,
    )


def geometric(shortest: int, longest: int, ratio: int = 2) -> list[int]:
    """Lengths from one to the other, each `ratio` times the one before; the longest is always among them."""
    found = [shortest]
    while found[-1] * ratio < longest:
        found.append(found[-1] * ratio)
    return found if longest <= shortest else [*found, longest]

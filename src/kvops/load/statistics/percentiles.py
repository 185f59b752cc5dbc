"""Exact percentiles: nearest rank over all samples, no buckets, and not given from too few samples.

Beside each stands its companion in which every failed request counts as infinitely slow, so that a node cannot look
better by refusing work.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

Values: TypeAlias = npt.NDArray[np.float64]
"""One dimension, seconds unless a name says otherwise."""

LEAST_SAMPLES = {0.50: 5, 0.95: 20, 0.99: 100}
"""With fewer, less than one sample is expected above the percentile (p50: a handful)."""

Quantile = float | Literal["inf"] | None
"""Seconds; "inf" where it falls on a failed request; None when the samples are too few."""


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One measure over `samples` successes; `*_with_failures` counts `failures` more as infinitely slow."""

    samples: int
    failures: int
    p50: Quantile
    p95: Quantile
    p99: Quantile
    max: float | None
    p50_with_failures: Quantile
    p95_with_failures: Quantile
    p99_with_failures: Quantile


def rank(count: int, share: float) -> int:
    """Index, from 0, of the smallest of `count` ordered values with at least `share` of all at or under it."""
    return max(0, math.ceil(round(share * count, 9)) - 1)


def quantile(ordered: Sequence[float] | Values, share: float) -> Quantile:
    """Nearest rank of values in ascending order."""
    if len(ordered) < LEAST_SAMPLES[share]:
        return None
    value = float(ordered[rank(len(ordered), share)])
    return "inf" if math.isinf(value) else value


def series(values: Iterable[float] | Values, failures: int = 0) -> Series:
    sample = as_array(values)
    p50, p95, p99, f50, f95, f99 = _quantiles(
        sample, [(lost, share) for lost in (0, failures) for share in LEAST_SAMPLES]
    )
    return Series(
        samples=len(sample), failures=failures, p50=p50, p95=p95, p99=p99,
        max=float(sample.max()) if len(sample) else None,
        p50_with_failures=f50, p95_with_failures=f95, p99_with_failures=f99,
    )  # fmt: skip


def as_array(values: Iterable[float] | Values) -> Values:
    if isinstance(values, np.ndarray):
        return values.astype(np.float64, copy=False)
    return np.fromiter(values, dtype=np.float64)


def _quantiles(values: Values, wanted: Sequence[tuple[int, float]]) -> list[Quantile]:
    """Of each `(failures, share)`: as `quantile` of the values and so many infinite ones, without sorting them all."""
    ranks = [rank(len(values) + lost, share) for lost, share in wanted]
    within = sorted({at for at in ranks if at < len(values)})
    picked = np.partition(values, within) if within else values
    return [
        _told(picked, at, len(values) + lost >= LEAST_SAMPLES[share])
        for at, (lost, share) in zip(ranks, wanted, strict=True)
    ]


def _told(picked: Values, at: int, is_enough: bool) -> Quantile:
    if not is_enough:
        return None
    value = float(picked[at]) if at < len(picked) else math.inf
    return "inf" if math.isinf(value) else value

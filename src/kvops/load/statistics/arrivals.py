"""When output tokens arrived, over all requests of a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from kvops.load.records import RequestRecord
from kvops.load.statistics.percentiles import Values, as_array


class Arrivals:
    """Every content delta with the tokens it brought: a delta counts as its share of the request's tokens.

    Requests without usage bring nothing.
    """

    def __init__(self, records: Iterable[RequestRecord]) -> None:
        counted = [
            record
            for record in records
            if record.ttft is not None and record.completion_tokens is not None
        ]
        sizes = np.array([len(record.itl) + 1 for record in counted], dtype=np.int64)
        first = np.array([record.t_send + (record.ttft or 0.0) for record in counted])
        tokens = np.array([record.completion_tokens or 0 for record in counted], dtype=np.float64)
        self.at: Values = _unrolled(first, sizes, pooled_gaps(counted))
        """Unix seconds, in the order of the records."""
        self.tokens: Values = np.repeat(tokens / sizes, sizes)

    def between(self, start: float, end: float) -> float:
        """Tokens that arrived in [start, end), Unix seconds."""
        return float(self.tokens[(self.at >= start) & (self.at < end)].sum())

    def rates(self, start: float, width: float, count: int) -> Values:
        """Tokens a second in each of `count` windows of `width` seconds from `start` on."""
        edges = start + width * np.arange(count + 1)
        return np.histogram(self.at, edges, weights=self.tokens / width)[0]


def _unrolled(
    first: Values, sizes: np.ndarray[tuple[int], np.dtype[np.int64]], gaps: Values
) -> Values:
    """Times of all deltas from the first of each request and the gaps after it."""
    heads = np.cumsum(sizes) - sizes
    steps = np.zeros(int(sizes.sum()))
    is_gap = np.ones(len(steps), dtype=bool)
    is_gap[heads] = False
    steps[is_gap] = gaps
    elapsed = np.cumsum(steps)
    return as_array(elapsed - np.repeat(elapsed[heads] - first, sizes))


def pooled_gaps(records: Sequence[RequestRecord]) -> Values:
    """The gaps between content deltas of all records in a row, seconds."""
    gaps, at = np.empty(sum(len(record.itl) for record in records)), 0
    for record in records:
        gaps[at : at + len(record.itl)] = record.itl
        at += len(record.itl)
    return gaps


def tokens_between(records: Iterable[RequestRecord], start: float, end: float) -> float:
    """Output tokens that arrived in [start, end), Unix seconds."""
    return Arrivals(records).between(start, end)

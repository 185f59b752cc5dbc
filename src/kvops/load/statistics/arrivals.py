"""When output tokens arrived, over all requests of a run."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from kvops.load.records import RequestRecord
from kvops.load.statistics.percentiles import Values, as_array

Counts: TypeAlias = npt.NDArray[np.int64]
TOGETHER = 4096
"""Requests whose deltas are unrolled at once: those of all of a long run would fill the memory."""


def tokens_between(records: Iterable[RequestRecord], start: float, end: float) -> float:
    """Output tokens that arrived in [start, end), Unix seconds; a delta of several tokens counts as its share."""
    return float(sum(tokens[(at >= start) & (at < end)].sum() for at, tokens in _arrivals(records)))


def token_rates(records: Iterable[RequestRecord], start: float, width: float, count: int) -> Values:
    """Output tokens a second in each of `count` windows of `width` seconds from `start` on, Unix seconds."""
    total = np.zeros(count)
    for at, tokens in _arrivals(records):
        window = np.floor((at - start) / width).astype(np.int64)
        inside = (window >= 0) & (window < count)
        total += np.bincount(window[inside], weights=tokens[inside], minlength=count)
    return total / width


def pooled_gaps(records: Sequence[RequestRecord]) -> Values:
    """The gaps between content deltas of all records in a row, seconds."""
    gaps, at = np.empty(sum(len(record.itl) for record in records)), 0
    for record in records:
        gaps[at : at + len(record.itl)] = record.itl
        at += len(record.itl)
    return gaps


def slow_gaps(records: Sequence[RequestRecord], bound: float) -> Counts:
    """Of each record: how many of its gaps are over `bound` seconds."""
    sizes = np.array([len(record.itl) for record in records], dtype=np.int64)
    before = np.concatenate(([0], np.cumsum(pooled_gaps(records) > bound)))
    ends = np.cumsum(sizes)
    counts: Counts = before[ends] - before[ends - sizes]
    return counts


def _arrivals(records: Iterable[RequestRecord]) -> Iterator[tuple[Values, Values]]:
    """Moments of content deltas, Unix seconds, and the tokens each brought: its share of those of its request.

    Requests without usage bring nothing.
    """
    counted = (record for record in records if record.ttft is not None and record.completion_tokens)
    while some := list(itertools.islice(counted, TOGETHER)):
        sizes = np.array([len(record.itl) + 1 for record in some], dtype=np.int64)
        first = as_array(record.t_send + (record.ttft or 0.0) for record in some)
        shares = as_array(record.completion_tokens or 0 for record in some) / sizes
        yield _unrolled(first, sizes, pooled_gaps(some)), np.repeat(shares, sizes)


def _unrolled(first: Values, sizes: Counts, gaps: Values) -> Values:
    """Times of all deltas from the first of each request and the gaps after it."""
    heads = np.cumsum(sizes) - sizes
    steps = np.insert(gaps, heads - np.arange(len(heads)), 0.0)
    elapsed = np.cumsum(steps)
    return as_array(elapsed - np.repeat(elapsed[heads] - first, sizes))

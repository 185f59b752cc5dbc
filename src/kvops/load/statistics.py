"""Exact statistics of a run's records. A percentile from too few samples is not given; a failure is never fast.

Percentiles are nearest-rank over all samples, no buckets. Beside each stands its companion in which every failed
request counts as infinitely slow, so that a node cannot look better by refusing work.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from kvops.load.records import ClientSample, RequestRecord
from kvops.units import format_duration, format_ratio

LEAST_SAMPLES = {0.50: 5, 0.95: 20, 0.99: 100}
"""With fewer, less than one sample is expected above the percentile (p50: a handful)."""
LAG_BOUND = 0.1
CPU_BOUND = 0.9
SATURATED_SHARE = 0.2

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


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    requests: int
    succeeded: int
    failed: int
    cancelled: int
    """In flight when the run ended: neither success nor failure."""
    errors: dict[str, int]
    """By error class."""
    window_seconds: float | None
    """From the first send to the last close."""
    requests_per_second: float | None
    output_tokens: int
    output_tokens_per_second: float | None
    prompt_tokens: int
    cached_tokens: int
    without_usage: int
    """Successes whose token counts the node did not report: the tokens above lack theirs."""
    ttft: Series
    itl: Series
    """Gaps between content deltas, pooled over all requests."""
    tpot: Series
    """(last delta - first delta) / (output tokens - 1), one value a request."""
    e2e: Series


def quantile(ordered: Sequence[float], share: float) -> Quantile:
    """Nearest rank: the smallest value with at least `share` of all at or under it."""
    if len(ordered) < LEAST_SAMPLES[share]:
        return None
    value = ordered[math.ceil(share * len(ordered)) - 1]
    return "inf" if math.isinf(value) else value


def series(values: Iterable[float], failures: int = 0) -> Series:
    ordered = sorted(values)
    with_failures = ordered + [math.inf] * failures
    shares = (0.50, 0.95, 0.99)
    p50, p95, p99 = (quantile(ordered, share) for share in shares)
    f50, f95, f99 = (quantile(with_failures, share) for share in shares)
    return Series(
        samples=len(ordered), failures=failures, p50=p50, p95=p95, p99=p99, max=ordered[-1] if ordered else None,
        p50_with_failures=f50, p95_with_failures=f95, p99_with_failures=f99,
    )  # fmt: skip


def tpot(record: RequestRecord) -> float | None:
    """Seconds per output token after the first; None with fewer than two tokens or without usage."""
    if record.last is None or record.ttft is None or (record.completion_tokens or 0) < 2:
        return None
    return (record.last - record.ttft) / ((record.completion_tokens or 0) - 1)


def summarize(records: Sequence[RequestRecord]) -> Summary:
    good = [record for record in records if record.expected]
    failed = sum(record.failed for record in records)
    window = window_seconds(records)
    output = sum(record.completion_tokens or 0 for record in good)
    streamed = [record for record in good if record.ttft is not None]
    return Summary(
        requests=len(records),
        succeeded=len(good),
        failed=failed,
        cancelled=sum(record.cancelled for record in records),
        errors=dict(
            Counter(str(record.error_class or "unexpected") for record in records if record.failed)
        ),
        window_seconds=window,
        requests_per_second=len(good) / window if window else None,
        output_tokens=output,
        output_tokens_per_second=output / window if window else None,
        prompt_tokens=sum(record.prompt_tokens or 0 for record in good),
        cached_tokens=sum(record.cached_tokens or 0 for record in good),
        without_usage=sum(record.completion_tokens is None for record in streamed),
        ttft=series((record.ttft for record in streamed if record.ttft is not None), failed),
        itl=series(gap for record in streamed for gap in record.itl),
        tpot=series((value for record in streamed if (value := tpot(record)) is not None), failed),
        e2e=series((record.e2e for record in good), failed),
    )


def window_seconds(records: Sequence[RequestRecord]) -> float | None:
    """First send to last close; None without records."""
    if not records:
        return None
    return max(record.t_send + record.e2e for record in records) - min(
        record.t_send for record in records
    )


def tokens_between(records: Iterable[RequestRecord], start: float, end: float) -> float:
    """Output tokens that arrived in [start, end), Unix seconds; a delta of several tokens counts as its share."""
    total = 0.0
    for record in records:
        if record.ttft is None or record.completion_tokens is None:
            continue
        per_delta = record.completion_tokens / (len(record.itl) + 1)
        at = record.t_send + record.ttft
        arrivals = [at, *(at := at + gap for gap in record.itl)]
        total += per_delta * sum(start <= arrival < end for arrival in arrivals)
    return total


def wilson_lower(hits: int, n: int, z: float = 1.96) -> float | None:
    """Lower end of Wilson's 95 % interval of a share (Wilson 1927); None without samples."""
    if n == 0:
        return None
    share = hits / n
    centre = share + z * z / (2 * n)
    spread = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, (centre - spread) / (1 + z * z / n))


def saturation(samples: Sequence[ClientSample]) -> str | None:
    """Why the client's own times cannot be trusted, or None. A share of late or busy seconds decides."""
    if not samples:
        return None
    late = sum(sample.lag > LAG_BOUND for sample in samples) / len(samples)
    busy = sum(sample.cpu > CPU_BOUND for sample in samples) / len(samples)
    if late > SATURATED_SHARE:
        bound = format_duration(LAG_BOUND)
        return f"the client's timers were over {bound} late in {format_ratio(late)} of all seconds"
    if busy > SATURATED_SHARE:
        return f"the client used over {format_ratio(CPU_BOUND)} of its core in {format_ratio(busy)} of all seconds"
    return None

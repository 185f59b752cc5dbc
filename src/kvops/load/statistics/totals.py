"""What every run has: counts, tokens, rates, and the latencies of its requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from kvops.load.records import RequestRecord
from kvops.load.statistics.arrivals import pooled_gaps
from kvops.load.statistics.percentiles import Series, series


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
    cached_share: float | None
    """Of the prompt tokens whose cached part the node tells; None: it tells none."""
    without_usage: int
    """Successes whose token counts the node did not report: the tokens above lack theirs."""
    ttft: Series
    """From the written request to the first content delta."""
    scheduled_ttft: Series
    """From the wanted send to the first content delta, with connecting and lateness: no coordinated omission."""
    itl: Series
    """Gaps between content deltas, pooled over all requests."""
    tpot: Series
    """(last delta - first delta) / (output tokens - 1), one value a request."""
    e2e: Series
    """Of answers that brought content: a refusal that the scenario expects is quick, and no answer."""


def tpot(record: RequestRecord) -> float | None:
    """Seconds per output token after the first; None with fewer than two tokens or without usage."""
    if record.last is None or record.ttft is None or (record.completion_tokens or 0) < 2:
        return None
    return (record.last - record.ttft) / ((record.completion_tokens or 0) - 1)


def summarize(records: Sequence[RequestRecord]) -> Summary:
    good = [record for record in records if record.expected]
    failed = [record for record in records if record.failed]
    window = window_seconds(records)
    output = sum(record.completion_tokens or 0 for record in good)
    streamed = [record for record in good if record.ttft is not None]
    waits = (wait for record in streamed if (wait := record.scheduled_ttft) is not None)
    paces = (pace for record in streamed if (pace := tpot(record)) is not None)
    return Summary(
        requests=len(records),
        succeeded=len(good),
        failed=len(failed),
        cancelled=sum(record.cancelled for record in records),
        errors=dict(Counter(str(record.error_class or "unexpected") for record in failed)),
        window_seconds=window,
        requests_per_second=len(good) / window if window else None,
        output_tokens=output,
        output_tokens_per_second=output / window if window else None,
        prompt_tokens=sum(record.prompt_tokens or 0 for record in good),
        cached_tokens=sum(record.cached_tokens or 0 for record in good),
        cached_share=_cached_share(good),
        without_usage=sum(record.completion_tokens is None for record in streamed),
        ttft=series((record.ttft for record in streamed if record.ttft is not None), len(failed)),
        scheduled_ttft=series(waits, len(failed)),
        itl=series(pooled_gaps(streamed)),
        tpot=series(paces, len(failed)),
        e2e=series((record.e2e for record in streamed), len(failed)),
    )


def window_seconds(records: Sequence[RequestRecord]) -> float | None:
    """First send to last close; None without records."""
    if not records:
        return None
    return max(record.t_send + record.e2e for record in records) - min(
        record.t_send for record in records
    )


def _cached_share(records: Sequence[RequestRecord]) -> float | None:
    told = [record for record in records if record.cached_tokens is not None]
    prompt = sum(record.prompt_tokens or 0 for record in told)
    return sum(record.cached_tokens or 0 for record in told) / prompt if prompt else None

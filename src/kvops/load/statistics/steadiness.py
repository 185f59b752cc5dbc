"""The start of a run that is not yet typical, and whether what follows is steady."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from kvops.load.records import RequestRecord
from kvops.load.statistics.percentiles import Values
from kvops.load.statistics.totals import tpot
from kvops.load.statistics.trend import trend
from kvops.units import format_duration, format_ratio

BATCH = 5
LEAST_ANSWERS = 100
"""20 batches: of fewer neither rule says anything."""
LEAST_KEPT = 10
"""Batches, and a quarter of all: the spread of fewer is chance."""
WINDOWS = 20
CONFIDENCE = 0.99
"""That a drift is one at all."""
DRIFT = 0.10
"""A change of a median over the run that is still called steady."""
RULE = (
    "MSER-5 on the time to the first token in the order of sending: of all starts that could be left out, the one"
    " that leaves the smallest standard error of the mean; at most half"
)


class WarmUp(msgspec.Struct, frozen=True, kw_only=True):
    until: float | None
    """Unix seconds of the first send after it; None: it could not be told."""
    dropped: int
    share: float
    """Of all requests."""
    statement: str
    rule: str = RULE


class Steadiness(msgspec.Struct, frozen=True, kw_only=True):
    steady: bool | None
    """None: it could not be told."""
    statement: str


def after_warm_up(records: Sequence[RequestRecord], found: WarmUp) -> list[RequestRecord]:
    return [record for record in records if found.until is None or record.t_send >= found.until]


def warm_up(records: Sequence[RequestRecord]) -> WarmUp:
    """Which requests at the start to leave out of typical latencies. Verdicts count them all the same."""
    answered = _answered(records)
    if len(answered) < LEAST_ANSWERS:
        return _untold(f"too few answers to find a warm-up ({len(answered)} of {LEAST_ANSWERS})")
    batches = mser(np.array([record.ttft for record in answered]))
    if batches is None:
        return _untold("no end of a warm-up was found in the first half of the run")
    until = answered[batches * BATCH].t_send
    dropped = sum(record.t_send < until for record in records)
    share = dropped / len(records)
    return WarmUp(
        until=until,
        dropped=dropped,
        share=share,
        statement=f"warm-up: the first {dropped} of {len(records)} requests ({format_ratio(share)})"
        if dropped
        else "no warm-up was found",
    )


def mser(values: Values) -> int | None:
    """Batches of 5 to leave out at the start (MSER-5; White, Cobb and Spratt 2000); None: more than half.

    The standard error of what is kept is least there; the first of equals counts.
    """
    whole = len(values) // BATCH * BATCH
    means = values[:whole].reshape(-1, BATCH).mean(axis=1)
    means -= np.median(means)  # so that equal values leave no rounding behind
    kept = np.arange(len(means), 0, -1)
    sums, squares = np.cumsum(means[::-1])[::-1], np.cumsum(means[::-1] ** 2)[::-1]
    errors = np.maximum(squares - sums**2 / kept, 0.0) / kept.astype(np.float64) ** 2
    least = int(np.argmin(errors[kept >= max(LEAST_KEPT, len(means) // 4)]))
    return least if least <= len(means) // 2 else None


def steadiness(records: Sequence[RequestRecord]) -> Steadiness:
    """Whether the medians of first token and pace stay within 10 % over the run, by a Theil–Sen slope."""
    answered = _answered(records)
    if len(answered) < LEAST_ANSWERS:
        few = f"too few answers to tell whether it was steady ({len(answered)} of {LEAST_ANSWERS})"
        return Steadiness(steady=None, statement=few)
    drifts = [drift for name, of in _MEASURES.items() if (drift := _drift(answered, name, of))]
    if drifts:
        return Steadiness(steady=False, statement=f"no steady state: {'; '.join(drifts)}")
    return Steadiness(
        steady=True,
        statement=f"steady: no median drifts by more than {format_ratio(DRIFT)} over the run",
    )


def _drift(
    records: Sequence[RequestRecord], name: str, of: Callable[[RequestRecord], float | None]
) -> str | None:
    pairs = [(record.t_send, value) for record in records if (value := of(record)) is not None]
    found = trend(
        [at for at, _ in pairs],
        [value for _, value in pairs],
        confidence=CONFIDENCE,
        points=WINDOWS,
    )
    if found is None or found.is_flat or abs(found.change or 0.0) <= DRIFT:
        return None
    grew = "grew" if found.slope > 0 else "fell"
    ends = " to ".join(map(format_duration, (found.start, found.end)))
    return f"the median {name} {grew} by {format_ratio(abs(found.change or 0.0))}, from {ends}"


_MEASURES: dict[str, Callable[[RequestRecord], float | None]] = {
    "time to the first token": lambda record: record.ttft,
    "time per token": tpot,
}


def _answered(records: Sequence[RequestRecord]) -> list[RequestRecord]:
    answered = [record for record in records if record.expected and record.ttft is not None]
    return sorted(answered, key=lambda record: record.t_send)


def _untold(statement: str) -> WarmUp:
    return WarmUp(until=None, dropped=0, share=0.0, statement=f"{statement}: nothing is left out")

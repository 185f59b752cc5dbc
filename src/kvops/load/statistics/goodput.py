"""Requests that met every objective at once, over all that were attempted: shedding or failing work never helps.

Each request counts once for each objective, for gaps too: all the gaps of a step of a batch are one event, and the
gaps of one answer are not as many samples as they are gaps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from kvops.load.records import ErrorClass, RequestRecord
from kvops.load.slo import Slo
from kvops.load.statistics.arrivals import slow_gaps
from kvops.load.statistics.confidence import CONFIDENCE, Claim, claim_of
from kvops.load.statistics.totals import tpot, window_seconds

Marks: TypeAlias = npt.NDArray[np.int8]
"""One a request: whether it is OVER a bound, WITHIN it, or says NOTHING of it."""
OVER, WITHIN, NOTHING = 1, 0, -1


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    attempted: int
    """All whose outcome is known: failures too, and those that the end of the run cut off when they were too late
    already. Without the latter an overloaded node would look the better the longer it lets requests wait."""
    good: int
    share: float | None
    per_second: float | None
    """Good requests over the run's window."""


def goodput(
    records: Sequence[RequestRecord], slo: Slo, seen: Mapping[str, Marks] | None = None
) -> Goodput:
    """A request that brought no content is not good. What it has not, such as a pace without a second token, it does
    not miss. `seen`: `all_marks` of the records, where they are known."""
    missed = np.zeros(len(records), dtype=bool)
    for found in (all_marks(records, slo) if seen is None else seen).values():
        missed |= found == OVER
    attempted, good = [], 0
    for record, late in zip(records, missed.tolist(), strict=True):
        if late or not record.cancelled:
            attempted.append(record)
            good += not late and record.ttft is not None and not record.failed
    window = window_seconds(attempted)
    return Goodput(
        attempted=len(attempted),
        good=good,
        share=good / len(attempted) if attempted else None,
        per_second=good / window if window else None,
    )


def overdue(record: RequestRecord, measure: str, bound: float) -> bool:
    """Whether a request that the end of the run cut off had missed the bound already, so much is known of it."""
    if not record.cancelled or measure not in ("ttft", "e2e"):
        return False
    if measure == "ttft" and record.ttft is not None:
        return (value_of(record, "ttft") or 0.0) > bound
    return record.e2e + record.waited > bound


def objectives(
    records: Sequence[RequestRecord],
    slo: Slo,
    confidence: float = CONFIDENCE,
    seen: Mapping[str, Marks] | None = None,
) -> dict[str, Claim]:
    """What the samples say of each objective, by measure. A failure breaks all of them. `seen` as for `goodput`."""
    known = all_marks(records, slo) if seen is None else seen
    found = {}
    for name, bound in slo.bounds().items():
        over, count = int((known[name] == OVER).sum()), int((known[name] != NOTHING).sum())
        found[name] = claim_of(over, count, slo.percentile, bound, confidence)
    return found


def all_marks(records: Sequence[RequestRecord], slo: Slo) -> dict[str, Marks]:
    """By measure."""
    bounds = slo.bounds().items()
    return {name: marks(records, name, bound, slo.percentile) for name, bound in bounds}


def marks(records: Sequence[RequestRecord], measure: str, bound: float, share: float) -> Marks:
    """Of each record whether it is over `bound`. An answer's gaps are when the `share` percentile of them is.

    Nothing is said by what the run's end cut off in time, by what the client had no room to send, and by an answer
    that has not what is measured. A good answer without a first token breaks what counts from it: it is nothing that
    can be left out.
    """
    if measure == "itl":
        return _gap_marks(records, bound, share)
    values = np.fromiter((_counted(r, measure, bound) for r in records), dtype=np.float64)
    return np.where(np.isnan(values), NOTHING, values > bound).astype(np.int8)


def _gap_marks(records: Sequence[RequestRecord], bound: float, share: float) -> Marks:
    sizes = np.array([len(record.itl) for record in records], dtype=np.int64)
    ranks = np.ceil(np.round(share * sizes, 9)).astype(
        np.int64
    )  # the nearest, as for all percentiles
    found = (slow_gaps(records, bound) > sizes - np.maximum(ranks, 1)).astype(np.int8)
    found[sizes == 0] = NOTHING
    for at, record in enumerate(records):
        if not record.expected:
            found[at] = NOTHING if record.cancelled or unsent(record) else OVER
    return found


def _counted(record: RequestRecord, measure: str, bound: float) -> float:
    """Seconds; infinity for what is over any bound, NaN for what says nothing of it."""
    if not record.expected:
        if record.cancelled:
            return math.inf if overdue(record, measure, bound) else math.nan
        return math.nan if unsent(record) else math.inf
    value = value_of(record, measure)
    if value is not None:
        return value
    return math.inf if measure in ("ttft", "e2e") and untimed(record) else math.nan


def unsent(record: RequestRecord) -> bool:
    """Whether the client had no room for it: the node never saw it."""
    return record.error_class is ErrorClass.CLIENT_SATURATED


def untimed(record: RequestRecord) -> bool:
    """Whether an answer came without a first token that could be timed. A refusal that was expected has none."""
    return record.expected and record.status == 200 and record.ttft is None


def value_of(record: RequestRecord, measure: str) -> float | None:
    """Seconds. First token and whole answer count from the moment the request was wanted: with the time to connect,
    and in an open loop with that for which it was sent too late."""
    match measure:
        case "ttft":
            return record.scheduled_ttft
        case "tpot":
            return tpot(record)
        case "e2e":
            return None if record.ttft is None else record.e2e + record.waited
    raise ValueError(f"{measure!r} is no measure of a request")

"""Requests that met every objective at once, over all that were attempted: shedding or failing work never helps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from kvops.load.records import RequestRecord
from kvops.load.statistics.arrivals import pooled_gaps
from kvops.load.statistics.confidence import CONFIDENCE, Claim, claim
from kvops.load.statistics.percentiles import rank
from kvops.load.statistics.totals import tpot, window_seconds
from kvops.units import format_duration

Measure = Literal["ttft", "itl", "tpot", "e2e"]


class Slo(msgspec.Struct, frozen=True):
    """An objective: the `share` percentile of `measure` is at or under `bound` seconds."""

    measure: Measure
    bound: float
    share: float = 0.95

    def __str__(self) -> str:
        return f"{self.measure} p{100 * self.share:g} <= {format_duration(self.bound)}"


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    attempted: int
    """All but those in flight when the run ended; failures are in it."""
    good: int
    share: float | None
    per_second: float | None
    """Good requests over the run's window."""


class Objective(msgspec.Struct, frozen=True):
    slo: Slo
    claim: Claim


def goodput(records: Sequence[RequestRecord], slos: Sequence[Slo]) -> Goodput:
    attempted = [record for record in records if not record.cancelled]
    good = sum(all(meets(record, slo) for slo in slos) for record in attempted)
    window = window_seconds(attempted)
    return Goodput(
        attempted=len(attempted),
        good=good,
        share=good / len(attempted) if attempted else None,
        per_second=good / window if window else None,
    )


def meets(record: RequestRecord, slo: Slo) -> bool:
    """Whether one request is within the bound; one that failed is not, one without a second token has no pace to miss.

    Of a request's own gaps (`itl`) the percentile that the objective names counts.
    """
    if record.failed:
        return False
    value = _VALUES[slo.measure](record, slo)
    return value is None or value <= slo.bound


def objectives(
    records: Sequence[RequestRecord], slos: Sequence[Slo], confidence: float = CONFIDENCE
) -> list[Objective]:
    """What the samples say of each objective. Pooled gaps know no failures: those are judged by the other measures."""
    attempted = [record for record in records if not record.cancelled]
    failures = sum(record.failed for record in attempted)
    good = [record for record in attempted if not record.failed]
    return [Objective(slo, _claim(good, failures, slo, confidence)) for slo in slos]


def _claim(good: Sequence[RequestRecord], failures: int, slo: Slo, confidence: float) -> Claim:
    if slo.measure == "itl":
        return claim(pooled_gaps(good), 0, slo.share, slo.bound, confidence)
    values = (_VALUES[slo.measure](record, slo) for record in good)
    known = (value for value in values if value is not None)
    return claim(known, failures, slo.share, slo.bound, confidence)


def _own_gap(record: RequestRecord, slo: Slo) -> float | None:
    if not record.itl:
        return None
    return sorted(record.itl)[rank(len(record.itl), slo.share)]


_VALUES: dict[Measure, Callable[[RequestRecord, Slo], float | None]] = {
    "ttft": lambda record, _: record.scheduled_ttft,
    "itl": _own_gap,
    "tpot": lambda record, _: tpot(record),
    "e2e": lambda record, _: record.e2e + max(record.lateness or 0.0, 0.0),
}
"""A user's first token and whole answer count from the moment the request was wanted."""

"""Requests that met every objective at once, over all that were attempted: shedding or failing work never helps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from kvops.load.records import RequestRecord
from kvops.load.slo import Slo
from kvops.load.statistics.arrivals import pooled_gaps
from kvops.load.statistics.confidence import CONFIDENCE, Claim, claim
from kvops.load.statistics.percentiles import Values, as_array
from kvops.load.statistics.totals import tpot, window_seconds


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    attempted: int
    """All whose outcome is known: failures too, and those that the end of the run cut off when they were too late
    already. Without the latter an overloaded node would look the better the longer it lets requests wait."""
    good: int
    share: float | None
    per_second: float | None
    """Good requests over the run's window."""


def goodput(records: Sequence[RequestRecord], slo: Slo) -> Goodput:
    bounds = slo.bounds()
    attempted = [
        r for r in records if not r.cancelled or any(overdue(r, *one) for one in bounds.items())
    ]
    good = sum(_meets(record, bounds) for record in attempted)
    window = window_seconds(attempted)
    return Goodput(
        attempted=len(attempted),
        good=good,
        share=good / len(attempted) if attempted else None,
        per_second=good / window if window else None,
    )


def meets(record: RequestRecord, slo: Slo) -> bool:
    """Whether one request is within all bounds (DistServe, Zhong 2024); one that brought no content is not.

    What it has not, such as a pace without a second token, it does not miss. Its gaps count by their mean.
    """
    return _meets(record, slo.bounds())


def _meets(record: RequestRecord, bounds: Mapping[str, float]) -> bool:
    if record.failed or record.cancelled or record.ttft is None:
        return False
    for measure, bound in bounds.items():
        value = value_of(record, measure)
        if value is not None and value > bound:
            return False
    return True


def overdue(record: RequestRecord, measure: str, bound: float) -> bool:
    """Whether a request that the end of the run cut off had missed the bound already, so much is known of it."""
    if not record.cancelled or measure not in ("ttft", "e2e"):
        return False
    if measure == "ttft" and record.ttft is not None:
        return (value_of(record, "ttft") or 0.0) > bound
    return record.e2e + max(record.lateness or 0.0, 0.0) > bound


def objectives(
    records: Sequence[RequestRecord], slo: Slo, confidence: float = CONFIDENCE
) -> dict[str, Claim]:
    """What the samples say of each objective, by measure. Failures break all but that of the pooled gaps.

    A good answer without a first token breaks those that count from it: it is nothing that can be left out.
    """
    good = [record for record in records if not record.failed and not record.cancelled]
    lost = sum(record.failed for record in records)
    silent = sum(untimed(record) for record in good)
    more = {"ttft": lost + silent, "e2e": lost + silent, "tpot": lost, "itl": 0}
    return {
        name: claim(
            values_of(good, name),
            more[name] + sum(overdue(r, name, bound) for r in records),
            slo.percentile,
            bound,
            confidence,
        )
        for name, bound in slo.bounds().items()
    }


def untimed(record: RequestRecord) -> bool:
    """Whether an answer came without a first token that could be timed. A refusal that was expected has none."""
    return record.expected and record.status == 200 and record.ttft is None


def values_of(records: Sequence[RequestRecord], measure: str) -> Values:
    """One value a request that has it; of `itl` every gap of all requests."""
    if measure == "itl":
        return pooled_gaps(records)
    found = (value_of(record, measure) for record in records)
    return as_array(value for value in found if value is not None)


def value_of(record: RequestRecord, measure: str) -> float | None:
    """Seconds. An open loop's first token and whole answer count from the moment the request was wanted."""
    match measure:
        case "ttft":
            return record.ttft if record.t_intended is None else record.scheduled_ttft
        case "tpot":
            return tpot(record)
        case "itl":
            return sum(record.itl) / len(record.itl) if record.itl else None
        case "e2e":
            return None if record.ttft is None else record.e2e + max(record.lateness or 0.0, 0.0)
    raise ValueError(f"{measure!r} is no measure of a request")

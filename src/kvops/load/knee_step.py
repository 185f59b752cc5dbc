"""One step of the search for the knee: whether its load met the objectives, and what stood in the way."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import msgspec

from kvops.load.knee import Outcome
from kvops.load.records import ErrorClass, RequestRecord, ServerSample
from kvops.load.slo import Slo
from kvops.load.statistics import (
    Claim,
    claim_of,
    first_samples,
    looks,
    marks,
    sequential,
    wilson_lower,
)
from kvops.load.statistics.goodput import NOTHING, OVER

LEAST = 20
"""Requests under which a step is not judged, and a share of errors is not called small."""
FULL = 0.98
"""Share of the KV pool from which it counts as full."""


class Limit(enum.StrEnum):
    TTFT = "ttft"
    ITL = "itl"
    TPOT = "tpot"
    E2E = "e2e"
    ERRORS = "errors"
    QUEUE = "queue"
    """Requests were refused, or waited too long in the queue."""
    KV = "kv"
    """The KV cache was full or requests were preempted while an objective was missed."""
    CLIENT = "client"


class Aims(msgspec.Struct, frozen=True):
    slo: Slo
    max_errors: float
    seconds: float = 0.0
    """A step is held for so long at least: all that was sent meanwhile is in the first look at it."""

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Aims:
        """As the options of a run say."""
        return cls(Slo.of(options), options["max_errors"], options["step_seconds"])

    @property
    def least(self) -> int:
        """Fewest requests that can show a load to be good."""
        return max(LEAST, first_samples(self.slo.percentile, self.slo.confidence))


class Step(msgspec.Struct, frozen=True, kw_only=True):
    load: float
    outcome: Outcome
    requests: int
    failed: int
    """Those that were never answered among them."""
    claims: dict[str, Claim]
    limits: tuple[Limit, ...] = ()
    """Of a bad step, the deepest first."""


class Pressure(msgspec.Struct, frozen=True, kw_only=True):
    """What the node showed while a step ran; None: not exposed."""

    kv_usage: float | None = None
    preemptions: int | None = None
    waiting: int | None = None
    running: int | None = None


_QUEUE = {
    ErrorClass.HTTP_429, ErrorClass.HTTP_429_QUEUE_FULL, ErrorClass.HTTP_429_KV_QUOTA,
    ErrorClass.HTTP_429_TENANT_LIMIT, ErrorClass.HTTP_503, ErrorClass.HTTP_503_QUEUE_TIMEOUT,
}  # fmt: skip


def decide(
    records: Sequence[RequestRecord], aims: Aims, *, at_end: bool
) -> Outcome | Literal["open"]:
    """What is known of a step so far: "open" while more requests could still decide it.

    `records` are all that were sent before the first that is under way still. At its end, what enough samples did not
    show to be good counts as bad, and so does a percentile over its bound; too few samples are unclear.
    """
    share, _ = _errors(records)
    claims = claims_of(records, aims)
    found = {one.outcome for one in claims.values()}
    if "refuted" in found or _is_failing(records, aims):
        return "bad"
    enough = len(records) >= LEAST
    if found <= {"holds"} and enough:
        return "good" if share is not None and share <= aims.max_errors else "bad"
    if not at_end:
        return "open"
    shown = all(one.samples >= aims.least for one in claims.values())
    missed = any(one.over > (1 - one.share) * one.samples for one in claims.values())
    return "bad" if enough and (shown or missed) else "unclear"


def settled(
    records: Sequence[RequestRecord], under_way: Collection[float], aims: Aims
) -> list[RequestRecord]:
    """Those of a step that may be judged while others are `under_way`, sent at these Unix seconds.

    What is quick ends first: without those that were sent before it, a load would look better than it is. Nothing
    before all that were sent in the step's first seconds have ended.
    """
    if not records or not under_way:
        return list(records)
    first = min(under_way)
    begun = min(first, min(one.t_send for one in records))
    if first < begun + aims.seconds:
        return []
    return [one for one in records if one.t_send < first]


def claims_of(records: Sequence[RequestRecord], aims: Aims) -> dict[str, Claim]:
    """What the requests show of each objective, in the order in which they were sent; so few that no look was due are
    judged as they are."""
    ordered, slo, found = sorted(records, key=_sent), aims.slo, {}
    early = _early(ordered, aims)
    for name, bound in slo.bounds().items():
        seen = marks(ordered, name, bound, slo.percentile)
        count = int((seen != NOTHING).sum())
        if count < LEAST:
            over = int((seen == OVER).sum())
            found[name] = claim_of(over, count, slo.percentile, bound, slo.confidence)
            continue
        least = max(LEAST, int((seen[:early] != NOTHING).sum()))
        found[name] = sequential(seen, slo.percentile, bound, slo.confidence, least)
    return found


def _early(ordered: Sequence[RequestRecord], aims: Aims) -> int:
    """Those that were sent in the step's first seconds."""
    return sum(one.t_send < ordered[0].t_send + aims.seconds for one in ordered)


def _sent(record: RequestRecord) -> float:
    return record.t_send


def _is_failing(records: Sequence[RequestRecord], aims: Aims) -> bool:
    """Whether too many failed at any of the looks, or of so few that no look was due."""
    ordered = sorted(records, key=_sent)
    sizes = [len(ordered)]
    if len(ordered) >= LEAST:
        plan = looks(aims.slo.percentile, aims.slo.confidence, max(LEAST, _early(ordered, aims)))
        sizes = [one.samples for one in plan if one.samples <= len(ordered)]
    failed = [sum(not one.expected for one in ordered[:size]) for size in sizes]
    lows = [wilson_lower(*pair) for pair in zip(failed, sizes, strict=True)]
    return any(low is not None and low > aims.max_errors for low in lows)


def measure(load: float, records: Sequence[RequestRecord], aims: Aims, pressure: Pressure) -> Step:
    """A step that is over."""
    outcome = decide(records, aims, at_end=True)
    claims = claims_of(records, aims)
    _, failed = _errors(records)
    limits = _limits(records, claims, aims, pressure) if outcome == "bad" else ()
    return Step(
        load=load, outcome="unclear" if outcome == "open" else outcome, requests=len(records),
        failed=failed, claims=claims, limits=limits,
    )  # fmt: skip


def pressure(samples: Sequence[ServerSample], start: float, end: float) -> Pressure:
    """Over the samples from `start` to `end`, Unix seconds."""
    own = [one for one in samples if start <= one.at <= end]
    usage = [one.kv_usage for one in own if one.kv_usage is not None]
    preempted = [one.preemptions for one in own if one.preemptions is not None]
    return Pressure(
        kv_usage=max(usage, default=None),
        preemptions=preempted[-1] - preempted[0] if preempted else None,
        waiting=max((one.waiting for one in own if one.waiting is not None), default=None),
        running=max((one.running for one in own if one.running is not None), default=None),
    )


def _errors(records: Sequence[RequestRecord]) -> tuple[float | None, int]:
    """Share and number of requests that failed, or were not answered before the step was given up."""
    failed = sum(not record.expected for record in records)
    return failed / len(records) if records else None, failed


def _limits(
    records: Sequence[RequestRecord], claims: dict[str, Claim], aims: Aims, seen: Pressure
) -> tuple[Limit, ...]:
    found: list[Limit] = []
    if (seen.kv_usage or 0.0) >= FULL or (seen.preemptions or 0) > 0:
        found.append(Limit.KV)
    share, failed = _errors(records)
    if failed and (share or 0.0) > aims.max_errors:
        refused = sum(record.error_class in _QUEUE for record in records)
        found.append(Limit.QUEUE if refused * 2 >= failed else Limit.ERRORS)
    found += [Limit(name) for name, one in claims.items() if one.outcome == "refuted"]
    if not any(one.outcome == "refuted" for one in claims.values()):
        found += [Limit(name) for name, one in claims.items() if one.outcome == "too few"]
    return tuple(found)

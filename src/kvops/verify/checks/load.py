"""Does the node carry the load it is planned for, as fast as it must, and count it rightly?"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from pydantic import Field

from kvops.load.records import RequestRecord
from kvops.load.statistics import (
    Claim,
    claim,
    claim_of,
    marks,
    quantile,
    summarize,
)
from kvops.load.statistics.goodput import NOTHING, OVER
from kvops.units import format_duration, format_ratio
from kvops.verify.check import Check, Outcome, Samples, fail, inconclusive
from kvops.verify.context import Context
from kvops.verify.driven import artifact, excused, kept
from kvops.verify.planned import LoadParameters, Planned, planned_load, rate, said, send_full

ID = "load.concurrency"
LEAST_LOOKS = 5
"""Samples of the node under which its queue says nothing."""
TOP_UPS = 2
"""Further runs of the full load where the samples are too few for what is claimed."""


class ConcurrencyParameters(LoadParameters):
    percentile: float = Field(default=0.95, gt=0.5, lt=1)
    confidence: float = Field(default=0.99, gt=0.5, lt=1)
    """Of the claim: it says how many samples are needed (MLPerf's early stopping), 90 for p95 without a slow one."""
    ttft: float = Field(default=10.0, gt=0)
    """Seconds to the first token that the percentile must keep."""
    itl: float = Field(default=1.0, gt=0)
    """Seconds between tokens, at the same percentile of each answer's gaps."""
    max_errors: float = Field(default=0.0, ge=0, le=1)
    """Share of requests that may fail or be refused."""
    waiting: float = Field(default=0.5, ge=0, le=1)
    """Share of the requests in the node that may wait, in the median."""


async def concurrency(context: Context, parameters: ConcurrencyParameters) -> Outcome:
    load = await planned_load(context, parameters)
    require_answers(load, parameters)
    require_gain(load, parameters)
    require_flow(load, parameters)
    records = list(load.full.records)
    claims = claims_of(records, parameters)
    for _ in range(TOP_UPS):
        if all(one.outcome != "too few" for one in claims.values()):
            break
        more = max(one.needed - one.samples for one in claims.values())
        users = load.users
        records += (await send_full(context, parameters, users, max(users, more))).records
        claims = claims_of(records, parameters)
    return judge(load, records, claims, parameters)


def claims_of(
    records: Sequence[RequestRecord], parameters: ConcurrencyParameters
) -> dict[str, Claim]:
    """First-token and gap objectives, a sample a request; a failed one is over both."""
    good = [one for one in records if one.expected and one.ttft is not None]
    failures = sum(one.failed for one in records)
    share, confidence = parameters.percentile, parameters.confidence
    ttft = [waited(one) for one in good]
    gaps = marks(records, "itl", parameters.itl, share)
    over, count = int((gaps == OVER).sum()), int((gaps != NOTHING).sum())
    return {
        "TTFT": claim(ttft, failures, share, parameters.ttft, confidence),
        "ITL": claim_of(over, count, share, parameters.itl, confidence),
    }


def waited(record: RequestRecord) -> float:
    """Seconds to the first token, with those to connect, by the clock of an open loop from when it was due."""
    return float("inf") if record.scheduled_ttft is None else record.scheduled_ttft


def require_answers(load: Planned, parameters: ConcurrencyParameters) -> None:
    asked = [one for one in load.records if not one.cancelled]
    refused = [one for one in asked if one.expected and one.status in (429, 503)]
    bad = [one for one in asked if one.failed] + refused
    if len(bad) > parameters.max_errors * len(asked):
        classes = sorted({str(one.error_class or f"HTTP {one.status}") for one in bad})
        fail(
            observed=f"{len(bad)} of {len(asked)} requests failed or were refused: {', '.join(classes)}",
            expected=f"at most {format_ratio(parameters.max_errors)}",
            remedy="the node does not carry the users it is planned for: see kvops node logs, and raise "
            "runtime.max_queue or kv_cache.bytes, or plan fewer users",
            n=len(asked),
            **_evidence(load),
        )


def require_gain(load: Planned, parameters: ConcurrencyParameters) -> None:
    """Many users together get more than one alone."""
    if load.gained is None or load.gained >= parameters.gain:
        return
    observed = f"for {load.full.info.users} users the node does {load.gained:.2f} × the work of one"
    excused(load.full, observed, ID)
    fail(
        observed=observed,
        expected=f"at least {parameters.gain:g} ×",
        remedy="requests wait for each other instead of running together: raise runtime.max_batch_size, and see "
        "whether something before the node serialises them",
        n=len(load.records),
        **_evidence(load),
    )


def require_flow(load: Planned, parameters: ConcurrencyParameters) -> None:
    """At the planned load requests run; a queue that stays is one that the plan does not know of."""
    seen = [one for one in load.full.server if one.waiting is not None and one.running]
    if len(seen) < LEAST_LOOKS:
        return
    waiting = median(one.waiting or 0 for one in seen)
    inside = median((one.waiting or 0) + (one.running or 0) for one in seen)
    if waiting > parameters.waiting * inside:
        fail(
            observed=f"{waiting:g} of {inside:g} requests in the node wait at {said(load.full)}, in the median",
            expected=f"at most {format_ratio(parameters.waiting)}",
            remedy="raise runtime.max_batch_size or kv_cache.bytes, whichever is full, or plan less",
            n=len(seen),
            **_evidence(load),
        )


def judge(
    load: Planned,
    records: Sequence[RequestRecord],
    claims: dict[str, Claim],
    parameters: ConcurrencyParameters,
) -> Outcome:
    percent = f"p{100 * parameters.percentile:g}"
    told = {
        name: f"{name} {percent} within {format_duration(c.bound)}" for name, c in claims.items()
    }
    evidence = _evidence(load) | {"claims": {told[name]: str(c) for name, c in claims.items()}}
    n = min(one.samples for one in claims.values())
    for name, one in claims.items():
        if one.outcome == "refuted":
            excused(load.full, f"{told[name]}: {one}", ID)
            fail(
                observed=f"{told[name]}: {one}",
                expected="met at the planned load",
                remedy="plan fewer users, shorten prompts, or see kvops node logs for what slows the node",
                n=n,
                **evidence,
            )
    open_ones = [f"{told[name]}: {one}" for name, one in claims.items() if one.outcome != "holds"]
    if open_ones:
        inconclusive(
            "; ".join(open_ones),
            expected="shown by the samples",
            remedy="raise requests in the profile, or the bound if it is too close",
            n=n,
            **evidence,
        )
    rates = ", ".join(f"{rate(step):.0f} tok/s at {said(step)}" for step in load.steps)
    return Outcome(
        verdict="pass",
        observed=f"{rates}; {_seen(records, percent)}; no failure",
        expected="; ".join(told.values()),
        unit="seconds",
        n=n,
        evidence=evidence,
        samples=samples_of(records),
        artifacts=tuple(artifact(step) for step in load.steps),
    )


def _seen(records: Sequence[RequestRecord], percent: str) -> str:
    total = summarize(records)
    values = {"TTFT": total.ttft.p95, "ITL": total.itl.p95}
    told = [f"{n} {format_duration(v)}" for n, v in values.items() if isinstance(v, float)]
    return f"p95 {', '.join(told)}" if told else f"too few for {percent}"


def samples_of(records: Sequence[RequestRecord]) -> dict[str, Samples]:
    """First-token time and median gap a request, a failed one as lost: gaps of one answer are not samples of their
    own."""
    attempts = [one for one in records if not one.cancelled]
    ttft = [waited(one) if one.expected else float("inf") for one in attempts]
    gaps = [
        median(one.itl) if one.expected else float("inf")
        for one in attempts
        if one.itl or not one.expected
    ]
    return {
        "ttft.load": Samples.of(ttft, unit="seconds", direction="lower"),
        "itl.load": Samples.of(gaps, unit="seconds", direction="lower"),
    }


def _evidence(load: Planned) -> dict[str, Any]:
    return {
        "steps": [
            kept(step)
            | {
                "tokens_per_second": round(rate(step), 2),
                "ttft_p50": quantile(
                    sorted(one.ttft for one in step.records if one.ttft is not None), 0.5
                ),
                "most_waiting": max((s.waiting or 0 for s in step.server), default=None),
                "most_kv_usage": max((s.kv_usage or 0.0 for s in step.server), default=None),
            }
            for step in load.steps
        ]
    }


CONCURRENCY = Check(
    id=ID,
    title="Planned concurrency",
    purpose="With the planned users at once every request is answered in time, and together they get more than one.",
    parameters=ConcurrencyParameters,
    run=concurrency,
    area="V5",
    typical=30.0,
    needs=("idle node", "load"),
)

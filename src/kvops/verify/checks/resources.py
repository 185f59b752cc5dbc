"""Does memory stay within the device at the planned load, and does nothing grow while the work stays the same?"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from pydantic import Field

from kvops.load.statistics import Trend, trend
from kvops.telemetry.snapshot import Known, MemoryLedger, NodeSnapshot
from kvops.units import format_bytes, format_duration, format_ratio
from kvops.verify.check import Check, Outcome, fail, inconclusive, skip
from kvops.verify.context import Context, pause
from kvops.verify.driven import artifact, kept
from kvops.verify.planned import LoadParameters, planned_load
from kvops.verify.soaked import Soaked, SoakParameters, soak, soaked
from kvops.verify.watch import Readings, levels, look

MEMORY = ("resident memory", "daemon memory", "other memory")
COUNTS = ("open files", "descriptors", "threads", "tasks")
SETTLE = 0.25
"""Share of the soak at its start, in which caches fill and pools grow to what the load needs."""


class PeakParameters(LoadParameters):
    share: float = Field(default=0.9, gt=0, le=1)
    """Of the device's memory, reserved KV included."""


async def memory_peak(context: Context, parameters: PeakParameters) -> Outcome:
    load = await planned_load(context, parameters)
    ledger = _ledger(load.after)
    if ledger is None:
        skip("the node shows no memory ledger on a control plane")
    seen = [
        sample.memory_used
        for step in load.steps
        for sample in step.server
        if sample.memory_used is not None
    ]
    outcome = judge_peak(ledger, seen, parameters.share, kept(load.full))
    return msgspec.structs.replace(outcome, artifacts=(artifact(load.full),))


def judge_peak(
    ledger: MemoryLedger, seen: Sequence[float], share: float, run: dict[str, Any]
) -> Outcome:
    """`seen`: shares of the device in use while the load ran.

    A CPU's memory is shared with the whole machine: there the node's own plan is told apart, and full is full all
    the same, whoever filled it.
    """
    peak = max([*seen, 1 - ledger.free / ledger.total])
    own = (ledger.weights + ledger.kv_reserved + ledger.activations) / ledger.total
    n, total = len(seen) + 1, format_bytes(ledger.total)
    evidence = run | {"device": ledger.device, "peak": peak, "own": own, "total": ledger.total}
    expected = f"at most {format_ratio(share)}"
    others = "" if ledger.device != "cpu" else f"; {format_ratio(own)} by the node's own plan"
    observed = f"{format_ratio(max(peak, own))} of {total} at the peak{others}"
    if own > share or (peak > share and ledger.device != "cpu"):
        fail(
            observed=observed,
            expected=expected,
            remedy="lower kv_cache.memory_fraction (or bytes) or runtime.max_batched_tokens: the next peak runs out "
            "of memory",
            n=n,
            **evidence,
        )
    if peak > share:
        fail(
            observed=observed,
            expected=expected,
            remedy="what else runs there takes the memory that the node counts on: move it, or lower kv_cache.bytes",
            n=n,
            **evidence,
        )
    return Outcome(verdict="pass", observed=observed, expected=expected, n=n, evidence=evidence)


def _ledger(snapshot: NodeSnapshot | None) -> MemoryLedger | None:
    if snapshot is None or not isinstance(snapshot.memory, Known):
        return None
    return snapshot.memory.value if snapshot.memory.value.total else None


class GrowthParameters(SoakParameters):
    floor: int = Field(default=64 * 2**20, ge=0)
    """Bytes by which memory may grow over the soak."""
    share: float = Field(default=0.01, ge=0, le=1)
    """Of the device's memory by which what is in no account may grow."""
    slack: int = Field(default=16, ge=0)
    """More files, threads or tasks than before that an idle node may have."""
    settle_within: float = Field(default=10.0, gt=0)
    """Seconds until they must be back."""


async def growth(context: Context, parameters: GrowthParameters) -> Outcome:
    found = await soaked(context, parameters)
    if not found.readings.series:
        skip("the node shows neither its memory nor its files and threads in /metrics")
    trends = trends_of(found.readings)
    grown = growing(trends, found.readings.total_memory, parameters)
    if grown:
        # Other programs of the machine and first-time allocations grow once: a leak grows again.
        again = await soak(context, parameters)
        trends = trends_of(again.readings)
        still = growing(trends, again.readings.total_memory, parameters)
        grown = {name: text for name, text in still.items() if name in grown}
    left = await _left(context, found.idle, parameters)
    return judge_growth(found, trends, grown, left)


def trends_of(readings: Readings) -> dict[str, Trend]:
    """Of each memory reading, once the start is left out."""
    found = {}
    for name in MEMORY:
        times, values = readings.series.get(name, ([], []))
        kept = [(t, v) for t, v in zip(times, values, strict=True) if t >= SETTLE * times[-1]]
        one = trend([t for t, _ in kept], [v for _, v in kept])
        if one is not None:
            found[name] = one
    return found


def growing(
    trends: Mapping[str, Trend], total: float | None, parameters: GrowthParameters
) -> dict[str, str]:
    """Readings that surely rise, and by more than is allowed; each with how much."""
    found = {}
    for name, one in trends.items():
        allowed = float(parameters.floor)
        if name == "other memory" and total is not None:
            allowed = max(allowed, parameters.share * total)
        drift = one.slope * one.span
        if one.low > 0 and drift > allowed:
            found[name] = f"{name} grew by {format_bytes(drift)} in {format_duration(one.span)}"
    return found


async def _left(
    context: Context, idle: Mapping[str, float], parameters: GrowthParameters
) -> dict[str, str]:
    """Counts that do not come back to what they were before the soak."""
    deadline = time.monotonic() + parameters.settle_within
    while True:
        page = await look(context)
        now = {} if page is None else levels(page)
        more = {
            name: f"{name} went from {idle[name]:g} to {now[name]:g}"
            for name in COUNTS
            if name in idle and name in now and now[name] > idle[name] + parameters.slack
        }
        if not more or time.monotonic() >= deadline:
            return more
        await pause()


def judge_growth(
    found: Soaked, trends: Mapping[str, Trend], grown: Mapping[str, str], left: Mapping[str, str]
) -> Outcome:
    n = len(found.data.records)
    evidence = kept(found.data) | {
        "trends": {
            name: {"per_hour": one.slope * 3600, "low": one.low * 3600, "high": one.high * 3600,
                   "level": one.level, "readings": len(found.readings.values(name))}
            for name, one in trends.items()
        },
        "idle_before": found.idle,
    }  # fmt: skip
    if grown or left:
        fail(
            observed="; ".join([*grown.values(), *left.values()]),
            expected="no growth while the load stays the same",
            remedy="the node leaks: let `kvops load run soak` say how fast, restart the node before it is full, and "
            "report the defect",
            n=n,
            **evidence,
        )
    if not trends:
        inconclusive(
            "too few readings for a trend",
            expected="readings over the soak",
            remedy="raise seconds in the profile",
            n=n,
            **evidence,
        )
    said = [
        f"{name} {'+' if one.slope >= 0 else '-'}{format_bytes(abs(one.slope * one.span))}"
        for name, one in trends.items()
    ]
    return Outcome(
        verdict="pass",
        observed=f"{', '.join(said)} in {n} requests; files, threads and tasks as before",
        expected="no growth while the load stays the same",
        unit="bytes",
        n=n,
        evidence=evidence,
        artifacts=(artifact(found.data),),
    )


MEMORY_PEAK = Check(
    id="resources.memory_peak",
    title="Peak of memory",
    purpose="At the planned load the device's memory, reserved KV included, stays under 90 %.",
    parameters=PeakParameters,
    run=memory_peak,
    area="V9",
    typical=1.0,
    needs=("control plane", "load"),
)
GROWTH = Check(
    id="resources.growth",
    title="Nothing grows",
    purpose="Under a load that stays the same neither memory nor files, threads or tasks become more and more.",
    parameters=GrowthParameters,
    run=growth,
    area="V4",
    typical=2.0,
    needs=("load",),
)

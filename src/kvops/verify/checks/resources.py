"""Does memory stay within the device at the planned load, and does nothing grow while the work stays the same?"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from pydantic import Field

from kvops.telemetry.snapshot import Known, MemoryLedger, NodeSnapshot
from kvops.units import format_bytes, format_ratio
from kvops.verify.check import Check, Outcome, fail, inconclusive, skip
from kvops.verify.context import Context, pause
from kvops.verify.driven import artifact, kept
from kvops.verify.growing import (
    HOUR,
    Growth,
    GrowthParameters,
    Rise,
    rises,
    summed_up,
    together,
)
from kvops.verify.planned import LoadParameters, planned_load
from kvops.verify.soaked import Soaked, soak, soaked
from kvops.verify.watch import levels, look

COUNTS = ("open files", "descriptors", "threads", "tasks")
NO_GROWTH = "no growth while the load stays the same"


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


async def growth(context: Context, parameters: GrowthParameters) -> Outcome:
    found = await soaked(context, parameters)
    if not found.readings.series:
        skip("the node shows neither its memory nor its files and threads in /metrics")
    soaks = [rises(found, parameters)]
    if not all(one.is_none for one in soaks[0].values()):
        # Other programs of the machine and first-time allocations grow once: a leak grows again.
        soaks.append(rises(await soak(context, parameters), parameters))
    left = await _left(context, found.idle, parameters)
    return judge_growth(found, together(soaks), left)


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


def judge_growth(found: Soaked, seen: Growth, left: Mapping[str, str]) -> Outcome:
    n = len(found.data.records)
    evidence = kept(found.data) | {
        "trends": {name: _numbers(one, found) for name, one in seen.rises.items()},
        "idle_before": found.idle,
    }
    if seen.leaks or left:
        fail(
            observed="; ".join([*seen.leaks.values(), *left.values()]),
            expected=NO_GROWTH,
            remedy="the node leaks: let `kvops load run soak` say how fast, restart the node before it is full, and "
            "report the defect",
            n=n,
            **evidence,
        )
    if not seen.rises:
        inconclusive(
            "too few readings for a trend",
            expected="readings over the soak",
            remedy="raise seconds in the profile",
            n=n,
            **evidence,
        )
    if seen.open:
        shared = any(seen.rises[name].shared for name in seen.open)
        inconclusive(
            "; ".join(seen.open.values()),
            expected=NO_GROWTH,
            remedy="run the gate on the node's own machine, where it reads what is the engine's"
            if shared
            else "let it soak longer: raise seconds, least_seconds and requests of load.soak and resources.growth "
            "alike in the profile",
            n=n,
            **evidence,
        )
    return Outcome(
        verdict="pass",
        observed=f"{summed_up(seen)}; files, threads and tasks as before",
        expected=NO_GROWTH,
        n=n,
        evidence=evidence,
        artifacts=(artifact(found.data),),
    )


def _numbers(one: Rise, found: Soaked) -> dict[str, Any]:
    """Bytes an hour, and what is allowed and would have been seen."""
    line = one.trend
    rates = {"per_hour": line.slope, "low": line.low, "high": line.high}
    rates |= {"allowed": one.allowed, "seen_from": one.seen_from}
    hourly = {name: rate * HOUR for name, rate in rates.items()}
    readings = len(found.readings.values(one.name))
    return hourly | {
        "level": line.level,
        "readings": readings,
        "requests_per_second": one.per_second,
    }


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

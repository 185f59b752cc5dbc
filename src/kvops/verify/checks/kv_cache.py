"""Does the KV cache hold what the planned load needs, and let go of it afterwards?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from kvops.load.records import ServerSample
from kvops.telemetry.snapshot import Known, NodeSnapshot
from kvops.units import format_duration, format_ratio, format_whole
from kvops.verify.check import Check, Outcome, fail, inconclusive, skip
from kvops.verify.context import Context
from kvops.verify.driven import artifact, kept
from kvops.verify.occupancy import occupancy, wait_until
from kvops.verify.planned import LoadParameters, Planned, Pressure, planned_load, pressed

_LEAK = "blocks leak with every request until none is left: restart the node, and report the defect"


class EmptyParameters(LoadParameters):
    within: float = Field(default=10.0, gt=0)
    """Seconds from the load's last answer until nothing runs, waits or is held."""


async def empty_after(context: Context, parameters: EmptyParameters) -> Outcome:
    await occupancy(context)  # a node that does not show it is not loaded for it
    load = await planned_load(context, parameters)
    last, empty = await wait_until(
        context,
        lambda now: not (now.running or now.waiting or now.kv_used),
        parameters.within,
    )
    n = len(load.records)
    evidence = kept(load.full) | {
        "running": last.running,
        "waiting": last.waiting,
        "kv_used": last.kv_used,
        "most_kv_used": max((s.kv_used or 0 for s in load.full.server), default=None),
    }
    if not empty and (last.running or last.waiting):
        inconclusive(
            f"{last.running:g} requests still run and {last.waiting:g} wait {format_duration(parameters.within)} "
            "after the load",
            expected="none",
            remedy="others use the node, or it works for clients that have gone: see disconnect.frees",
            n=n,
            **evidence,
        )
    if not empty:
        fail(
            observed=f"KV in use is {last.kv_used:g} though nothing runs, after {format_whole(n)} requests",
            expected="0",
            remedy=_LEAK,
            n=n,
            **evidence,
        )
    return Outcome(
        verdict="pass",
        observed=f"nothing runs, waits or is held after {format_whole(n)} requests",
        expected="0 running, 0 waiting, 0 KV in use",
        n=n,
        evidence=evidence,
        artifacts=(artifact(load.full),),
    )


class EvictionParameters(LoadParameters):
    preemptions: float = Field(default=0.05, ge=0)
    """For each request of the planned load."""
    spare: float = Field(default=0.1, ge=0, le=1)
    """Share of the pool that is free: while there is so much, nothing need be evicted."""


async def evictions(context: Context, parameters: EvictionParameters) -> Outcome:
    load = await planned_load(context, parameters)
    found = pressed(*load.counted)
    if found.preemptions is None:
        skip("/metrics of this node counts no preemptions")
    spare = least_free([sample for step in load.steps for sample in step.server], load.after)
    return judge(load, found, spare, parameters)


def judge(
    load: Planned, found: Pressure, spare: float | None, parameters: EvictionParameters
) -> Outcome:
    """`spare`: smallest share of the pool that was free; None where it is not known."""
    n = len(load.records)
    preempted, evicted = int(found.preemptions or 0), found.evictions
    evidence: dict[str, Any] = kept(load.full) | {
        "preemptions": preempted,
        "evictions": evicted,
        "least_free": spare,
    }
    if preempted > parameters.preemptions * n:
        fail(
            observed=f"{preempted} preemptions in {format_whole(n)} requests",
            expected=f"at most {format_ratio(parameters.preemptions)}",
            remedy="the KV cache is too small for the planned load: raise kv_cache.bytes or memory_fraction, use "
            "kv_cache.dtype: int8, or plan fewer users",
            n=n,
            **evidence,
        )
    if evicted and spare is not None and spare > parameters.spare:
        fail(
            observed=f"{evicted:g} cached blocks evicted while {format_ratio(spare)} of the pool or more was free",
            expected="no eviction before the pool is full",
            remedy="prefixes are thrown away that would have saved their computation: report the defect",
            n=n,
            **evidence,
        )
    free = "" if spare is None else f"; {format_ratio(spare)} of the pool free at the least"
    thrown = "evictions not told" if evicted is None else f"{evicted:g} evictions"
    return Outcome(
        verdict="pass",
        observed=f"{preempted} preemptions, {thrown} in {format_whole(n)} requests{free}",
        expected=f"preemptions ≤ {format_ratio(parameters.preemptions)} of requests; no eviction with room to spare",
        n=n,
        evidence=evidence,
        artifacts=(artifact(load.full),),
    )


def least_free(seen: Sequence[ServerSample], after: NodeSnapshot | None) -> float | None:
    """Smallest share of the pool that was neither held nor cached; None where it is not shown."""
    shares = [
        1 - (one.kv_used + one.kv_cached) / one.kv_total
        for one in seen
        if one.kv_total and one.kv_used is not None and one.kv_cached is not None
    ]
    if after is not None and isinstance(after.kv, Known) and after.kv.value.total_blocks:
        shares.append(after.kv.value.free_blocks / after.kv.value.total_blocks)
    return min(shares, default=None)


EMPTY_AFTER = Check(
    id="kv.empty_after",
    title="Empty after the load",
    purpose="Once the planned load has drained nothing runs, nothing waits and no KV block is held.",
    parameters=EmptyParameters,
    run=empty_after,
    area="V4",
    typical=1.0,
    needs=("idle node", "load"),
)
EVICTIONS = Check(
    id="memory.evictions",
    title="No frequent eviction",
    purpose="The planned load fits: requests are not put back for want of blocks, nor prefixes thrown out needlessly.",
    parameters=EvictionParameters,
    run=evictions,
    area="V9",
    typical=1.0,
    needs=("idle node", "load"),
)

"""Is every byte and every KV block accounted for, and is nothing held when nothing runs?"""

from __future__ import annotations

import time

from pydantic import Field

from kvops.telemetry.snapshot import Known, KvUsage, MemoryLedger, NodeSnapshot
from kvops.units import format_bytes, format_whole
from kvops.verify.check import Check, Outcome, Parameters, inconclusive, require, skip
from kvops.verify.context import Context, pause


class LedgerParameters(Parameters):
    idle_within: float = Field(default=5.0, gt=0)
    """Seconds until a node without requests must hold no block."""


async def adds_up(context: Context, parameters: LedgerParameters) -> Outcome:
    if context.node is None:
        skip(
            "the memory ledger is on the control plane, and no control plane is known",
            remedy="name it with --control-url and --token-file",
        )
    snapshot = await context.node.snapshot()
    memory, kv = snapshot.memory, snapshot.kv
    if not isinstance(memory, Known):
        skip(memory.reason)
    if not isinstance(kv, Known):
        skip(kv.reason)
    faults = ledger_faults(memory.value) + block_faults(kv.value) + _violations(snapshot)
    require(
        not faults,
        observed="; ".join(faults),
        expected="accounts that sum to the total, blocks that sum to the pool",
        remedy="the node's accounting is wrong: do not plan capacity by it, report the defect",
        faults=faults,
    )
    idle = await _idle(context, parameters.idle_within)
    total, blocks = format_bytes(memory.value.total), format_whole(idle.total_blocks)
    return Outcome(
        verdict="pass",
        observed=f"{total} and {blocks} blocks accounted for; 0 held",
        expected="exact sums; 0 blocks held when idle",
        unit="bytes",
        n=2,
        evidence={
            "total_bytes": memory.value.total,
            "total_blocks": idle.total_blocks,
            "cached_blocks": idle.cached_blocks,
        },
    )


def ledger_faults(memory: MemoryLedger) -> list[str]:
    parts = memory.weights + memory.kv_reserved + memory.activations + memory.other + memory.free
    faults = []
    if parts != memory.total:
        faults.append(
            f"accounts sum to {format_whole(parts)} B, the total is {format_whole(memory.total)} B"
        )
    if memory.kv_used + memory.kv_cached > memory.kv_reserved:
        faults.append("KV used + cached is more than reserved")
    low = [n for n in ("weights", "kv_reserved", "other", "free") if getattr(memory, n) < 0]
    return faults + [f"{name} is negative" for name in low]


def block_faults(kv: KvUsage) -> list[str]:
    parts = kv.used_blocks + kv.cached_blocks + kv.free_blocks
    if parts == kv.total_blocks:
        return []
    return [
        f"used + cached + free is {format_whole(parts)} blocks, the pool has {format_whole(kv.total_blocks)}"
    ]


def _violations(snapshot: NodeSnapshot) -> list[str]:
    progress = snapshot.progress
    count = progress.value.invariant_violations if isinstance(progress, Known) else 0
    return [f"{count} invariant violations of the block pool"] if count else []


async def _idle(context: Context, within: float) -> KvUsage:
    """The block pool once nothing runs. A node that others keep busy leaves the check open."""
    assert context.node is not None
    deadline = time.monotonic() + within
    while True:
        snapshot = await context.node.snapshot()
        queue, kv = snapshot.queue, snapshot.kv
        if not (isinstance(queue, Known) and isinstance(kv, Known)):
            skip("the snapshot does not expose queue and KV blocks")
        busy = queue.value.running + queue.value.waiting
        if not busy and not kv.value.used_blocks:
            return kv.value
        if time.monotonic() >= deadline:
            break
        await pause()
    if busy:
        inconclusive(
            f"{busy} requests still run",
            expected="an idle node",
            remedy="run the gate while nobody else uses the node",
        )
    require(
        False,
        observed=f"{kv.value.used_blocks} blocks are held though nothing runs",
        expected="0 blocks used when idle",
        remedy="blocks leak: restart the node and report the defect",
        used_blocks=kv.value.used_blocks,
    )
    return kv.value


ADDS_UP = Check(
    id="memory.adds_up",
    title="Memory adds up",
    purpose="The ledger sums to the device's memory, blocks sum to the pool, and an idle node holds none.",
    parameters=LedgerParameters,
    run=adds_up,
    area="V4",
)

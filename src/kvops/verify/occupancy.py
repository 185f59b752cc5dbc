"""How full a node is right now: from its snapshot where there is a control plane, else from `/metrics`."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from kvops.telemetry import prometheus
from kvops.telemetry.snapshot import Known, NodeSnapshot
from kvops.verify.check import skip
from kvops.verify.context import Context, pause

STALE = 0.5
"""Seconds: so old a reading may be whose age nobody tells."""


class Occupancy(msgspec.Struct, frozen=True):
    running: float
    waiting: float
    kv_used: float
    """Blocks, or a ratio where the engine tells no blocks: only good for comparing."""
    generated: float
    """Output tokens since start."""
    age: float = STALE
    """Seconds since the engine told of its blocks."""


class _Names(msgspec.Struct, frozen=True):
    running: str
    waiting: str
    kv_used: str
    generated: str
    kv_labels: dict[str, str] = {}


_NAMES = {
    "kvops": _Names(
        "kvops_requests_running",
        "kvops_requests_waiting",
        "kvops_kv_blocks",
        "kvops_generation_tokens_total",
        {"state": "used"},
    ),
    "vllm": _Names(
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:generation_tokens_total",
    ),
}


async def occupancy(context: Context) -> Occupancy:
    """Skips the check where the node shows neither. Raises what the node clients raise."""
    if context.node is not None:
        return from_snapshot(await context.node.snapshot())
    names = _NAMES.get(context.facts.engine or "")
    if names is None:
        skip(f"{context.facts.engine or 'this engine'} shows no running requests or KV usage")
    reply = await context.api.get("/metrics")
    if reply.status != 200:
        skip(f"/metrics answers {reply.status}: no running requests or KV usage is shown")
    page = prometheus.parse(reply.text)
    running, used = page.total(names.running), page.total(names.kv_used, **names.kv_labels)
    if running is None or used is None:
        skip(f"/metrics has no {names.running} or no {names.kv_used}")
    waiting, generated = page.total(names.waiting), page.total(names.generated)
    return Occupancy(running, waiting or 0.0, used, generated or 0.0)


def from_snapshot(snapshot: NodeSnapshot) -> Occupancy:
    queue, kv, traffic = snapshot.queue, snapshot.kv, snapshot.traffic
    if not (isinstance(queue, Known) and isinstance(kv, Known) and isinstance(traffic, Known)):
        skip("the snapshot does not expose queue, KV blocks and traffic")
    return Occupancy(
        queue.value.running,
        queue.value.waiting,
        kv.value.used_blocks,
        traffic.value.generation_tokens,
        max(0.0, snapshot.taken_at - kv.at),
    )


async def wait_until(
    context: Context, holds: Callable[[Occupancy], bool], seconds: float
) -> tuple[Occupancy, bool]:
    """Look until `holds` or `seconds` have passed; the last look, and whether it held."""
    deadline = time.monotonic() + seconds
    while True:
        seen = await occupancy(context)
        if holds(seen) or time.monotonic() >= deadline:
            return seen, holds(seen)
        await pause()

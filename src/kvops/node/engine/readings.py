"""What an engine tells of its block pool and prefix cache, counted from the scheduler's own books."""

from __future__ import annotations

from kvops.node.engine.scheduler import Scheduler
from kvops.telemetry.snapshot import KvUsage, PrefixCache


def kv_usage(scheduler: Scheduler, bytes_per_block: int) -> KvUsage:
    pool = scheduler.pool
    unused = [
        max(0, len(request.table) * pool.block_size - len(request.tokens))
        for request in scheduler.running
    ]
    slots = pool.used * pool.block_size
    return KvUsage(
        block_size=pool.block_size,
        total_blocks=pool.total,
        used_blocks=pool.used,
        cached_blocks=pool.cached,
        free_blocks=pool.free,
        bytes_per_block=bytes_per_block,
        waste_ratio=sum(unused) / slots if slots else 0.0,
        evictions=pool.evictions,
        preemptions=scheduler.counters.preemptions,
        fragmentation_ratio=sum(map(bool, unused)) / pool.used if pool.used else 0.0,
    )


def prefix_cache(scheduler: Scheduler) -> PrefixCache:
    counters, pool = scheduler.counters, scheduler.pool
    return PrefixCache(
        enabled=pool.prefix_caching,
        query_tokens=counters.query_tokens,
        hit_tokens=counters.hit_tokens,
        granularity_tokens=pool.block_size,
    )

"""Snapshots over time for alert tests, and the series that Prometheus would have scraped of the same."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from kvops.telemetry.snapshot import (
    AlertsState,
    Known,
    NodeSnapshot,
    NotExposed,
    Upkeep,
)
from tests.telemetry.samples import make_snapshot

GIB = 2**30
GONE = NotExposed("the engine is not running")
REASONS = ("killed", "stalled")


@dataclass
class Scene:
    """What a node is like at one moment; None is not exposed."""

    memory_used: float | None = 0.5
    kv_usage: float | None = 0.2
    waiting: int = 0
    oldest: float = 0.0
    ttft_p95: float | None = None
    stalled: bool = False
    broken: int = 0
    quarantined: int = 0
    disk_free: int = 10 * GIB
    undelivered: float = 0.0
    drill: str = ""
    outcomes: dict[str, int] = field(default_factory=lambda: {"stop": 0, "error": 0, "timeout": 0})
    refusals: dict[str, int] = field(
        default_factory=lambda: {"queue_full": 0, "not_ready": 0, "invalid_request": 0}
    )
    preemptions: int = 0
    unallocated: int = 0
    restarts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    log_dropped: int = 0
    stale: int = 0
    audit_failing: bool = False
    audit_dropped: int = 0
    within: dict[str, int] = field(default_factory=lambda: {"10.0": 0, "+Inf": 0})
    failures: dict[str, int] = field(default_factory=lambda: {"oncall": 0})

    def copy(self) -> Scene:
        return Scene(
            **{
                name: dict(value) if isinstance(value, dict) else value
                for name, value in vars(self).items()
            }
        )


MAX_WAITING = 256
TOTAL_BLOCKS = 10_000


def snapshot_of(scene: Scene, at: float) -> NodeSnapshot:
    plain = make_snapshot(at=at)
    memory, kv, queue, latency, traffic, progress = (
        reading.value  # type: ignore[union-attr]
        for reading in (plain.memory, plain.kv, plain.queue, plain.latency, plain.traffic, plain.progress)
    )  # fmt: skip
    change = msgspec.structs.replace
    used, blocks = scene.memory_used, scene.kv_usage
    held = None if blocks is None else round(TOTAL_BLOCKS * blocks)
    ttft = change(latency.ttft, p95=scene.ttft_p95)
    return change(
        plain,
        state="stalled" if scene.stalled else "ready",
        memory=GONE if used is None else Known(change(memory, total=1000, free=round(1000 * (1 - used))), at),
        kv=GONE
        if held is None
        else Known(change(kv, total_blocks=TOTAL_BLOCKS, used_blocks=held, preemptions=scene.preemptions), at),
        queue=Known(
            change(
                queue,
                waiting=scene.waiting,
                oldest_wait_seconds=scene.oldest or None,
                max_waiting=MAX_WAITING,
                waiting_by_class={"online": 0, "normal": scene.waiting, "batch": 0},
            ),
            at,
        ),
        latency=Known(change(latency, ttft=ttft), at),
        traffic=Known(
            change(
                traffic,
                requests_by_outcome=scene.outcomes,
                rejections_by_reason={why: n for why, n in scene.refusals.items() if n},
                first_tokens_within={"0-1k": scene.within},
                allocation_failures=scene.unallocated,
            ),
            at,
        ),
        progress=Known(
            change(
                progress,
                invariant_violations=scene.broken,
                quarantined=scene.quarantined,
                restarts_by_reason=scene.restarts,
            ),
            at,
        ),
        upkeep=Known(
            Upkeep(
                scene.log_dropped,
                scene.disk_free,
                100 * GIB,
                ("api_keys",) * scene.stale,
                scene.audit_failing,
                scene.audit_dropped,
            ),
            at,
        ),
        alerts=Known(
            AlertsState(
                evaluated_at=at,
                rules=(),
                active=(),
                deliveries={name: {"failed": count} for name, count in scene.failures.items()},
                oldest_undelivered_seconds=scene.undelivered,
                drill=scene.drill,
            ),
            at,
        ),
    )  # fmt: skip


def scraped(scene: Scene) -> dict[str, float]:
    """Series → value, as a node's `/metrics` has them."""
    series: dict[str, float] = {
        "kvops_build_info{}": 1,
        'kvops_requests_waiting{class="normal"}': scene.waiting,
        "kvops_queue_limit_requests{}": MAX_WAITING,
        "kvops_queue_oldest_seconds{}": scene.oldest,
        'kvops_node_state{state="stalled"}': float(scene.stalled),
        "kvops_engine_invariant_violations{}": scene.broken,
        "kvops_quarantined_shapes{}": scene.quarantined,
        "kvops_disk_free_bytes{}": scene.disk_free,
        "kvops_alert_undelivered_seconds{}": scene.undelivered,
        f'kvops_alert_drill{{nonce="{scene.drill}"}}': float(bool(scene.drill)),
        "kvops_log_dropped_total{}": scene.log_dropped,
        "kvops_allocation_failures_total{}": scene.unallocated,
        "kvops_stale_files{}": scene.stale,
        "kvops_audit_failing{}": float(scene.audit_failing),
        "kvops_audit_dropped_total{}": scene.audit_dropped,
        'kvops_time_to_first_token_seconds_bucket{tier="0-1k", le="10.0"}': scene.within["10.0"],
        'kvops_time_to_first_token_seconds_count{tier="0-1k"}': scene.within["+Inf"],
    }
    if scene.memory_used is not None:
        free = round(1000 * (1 - scene.memory_used))
        series |= {
            'kvops_memory_bytes{account="free"}': free,
            'kvops_memory_bytes{account="total"}': 1000,
        }
    if scene.kv_usage is not None:
        series["kvops_kv_usage_ratio{}"] = round(TOTAL_BLOCKS * scene.kv_usage) / TOTAL_BLOCKS
        series["kvops_preemptions_total{}"] = scene.preemptions
    if scene.ttft_p95 is not None:
        series["kvops_recent_time_to_first_token_p95_seconds{}"] = scene.ttft_p95
    return (
        series
        | _labelled("kvops_requests_total", "outcome", scene.outcomes)
        | _labelled("kvops_request_rejections_total", "reason", scene.refusals)
        | _labelled("kvops_engine_restarts_total", "reason", scene.restarts)
        | {
            f'kvops_alert_deliveries_total{{channel="{name}", outcome="failed"}}': count
            for name, count in scene.failures.items()
        }
    )  # fmt: skip


def _labelled(name: str, label: str, counts: Mapping[str, int]) -> dict[str, float]:
    return {f'{name}{{{label}="{key}"}}': count for key, count in counts.items()}


def wandering(seed: int, steps: int) -> Iterator[Scene]:
    """A node with one trouble after another: levels jump and stay, readings vanish, counters burst and start anew."""
    chance, upkeep = random.Random(seed), random.Random(f"upkeep {seed}")
    scene = Scene()
    for _ in range(steps):
        scene = scene.copy()
        _move_levels(scene, chance)
        _move_counters(scene, chance)
        _move_upkeep(scene, upkeep)
        yield scene


def _move_levels(scene: Scene, chance: random.Random) -> None:
    def now_and_then(often: float) -> bool:
        return chance.random() < often

    if now_and_then(0.12):
        scene.memory_used = chance.choice([0.5, 0.96, 0.96, 0.98, None])
    if now_and_then(0.15):
        scene.kv_usage = chance.choice([0.1, 0.9, 0.9, 0.97, 0.99, None])
    if now_and_then(0.15):
        scene.waiting = chance.choice([0, 140, 220, 250])
        scene.oldest = chance.choice([0.0, 12.0, 31.0])
    if now_and_then(0.08):
        scene.ttft_p95 = chance.choice([None, 0.5, 9.0, 12.0])
    if now_and_then(0.1):
        scene.disk_free = chance.choice([10 * GIB, GIB // 4, 5 * GIB // 8])
    if now_and_then(0.1):
        scene.undelivered = chance.choice([0.0, 60.0, 200.0])
    scene.stalled = now_and_then(0.4) if scene.stalled else now_and_then(0.05)
    scene.broken += now_and_then(0.01)
    scene.quarantined = int(now_and_then(0.5)) if scene.quarantined else int(now_and_then(0.02))
    scene.drill = (
        "" if scene.drill and now_and_then(0.5) else scene.drill or chance.choice([""] * 30 + ["n1", "n2"])
    )  # fmt: skip


def _move_counters(scene: Scene, chance: random.Random) -> None:
    trouble = chance.random() < 0.3
    served = chance.choice([0, 3, 10])
    failed = chance.choice([0, 2, 8]) if trouble else 0
    scene.outcomes["stop"] += served
    scene.outcomes["error"] += failed
    scene.within["+Inf"] += served
    scene.within["10.0"] += chance.choice([served, served // 2])
    scene.refusals["queue_full"] += chance.choice([0, 0, 0, 5]) if trouble else 0
    scene.refusals["invalid_request"] += chance.choice([0, 1])
    scene.preemptions += chance.choice([0, 0, 20]) if trouble else 0
    scene.restarts["killed"] += chance.random() < 0.01
    scene.log_dropped += chance.random() < 0.02
    scene.failures["oncall"] += chance.random() < 0.01
    if chance.random() < 0.004:  # the node was restarted
        fresh = Scene()
        for name in (
            "outcomes",
            "within",
            "refusals",
            "preemptions",
            "unallocated",
            "restarts",
            "log_dropped",
            "audit_dropped",
            "failures",
        ):
            setattr(scene, name, getattr(fresh, name))


def _move_upkeep(scene: Scene, chance: random.Random) -> None:
    if chance.random() < 0.06:
        scene.stale = chance.choice([0, 0, 1, 2])
    scene.audit_failing = chance.random() < (0.7 if scene.audit_failing else 0.03)
    scene.audit_dropped += chance.random() < 0.02
    scene.unallocated += chance.random() < 0.02

"""What a rule may watch: each reading by name, as a snapshot tells it and as Prometheus finds it at `/metrics`.

One table for both, so that an exported rule means what the node's own evaluator means. Missing is never a value.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from kvops.telemetry.snapshot import (
    CLIENT_FAULTS,
    TTFT_BOUNDS,
    AlertsState,
    Known,
    MemoryLedger,
    NodeSnapshot,
    NotExposed,
    Progress,
    QueueState,
    Reading,
    Traffic,
)

Unit = Literal["ratio", "seconds", "bytes", "count"]
Series = Mapping[str, float]
"""A counter's series by what tells them apart; `""` where there is one only."""
T = TypeVar("T")
V = TypeVar("V")

INSTANCE = ("job", "instance")
"""Labels that Prometheus puts on everything it scrapes from one node."""
_PERCENTILE_NEEDS = "too few requests of the last minutes for a percentile"
_FAULTS = "|".join(sorted(CLIENT_FAULTS))
_REFUSED = f'kvops_request_rejections_total{{reason!~"{_FAULTS}"}}'
_MEMORY = 'kvops_memory_bytes{{account="{}"}}'
_WITHIN = re.compile(r"ttft_within_(\d+(?:\.\d+)?)s")


@dataclass(frozen=True)
class Gauge:
    """A number that goes up and down."""

    name: str
    unit: Unit
    what: str
    promql: str
    """Gives one value a node, with the labels `by`."""
    read: Callable[[NodeSnapshot], Reading[float]]
    labels: Callable[[NodeSnapshot], dict[str, str]] = lambda snapshot: {}
    """What an alert on it carries besides its rule's labels."""
    by: tuple[str, ...] = INSTANCE


@dataclass(frozen=True)
class Counter:
    """A number that only grows while the node runs."""

    name: str
    what: str
    selectors: tuple[str, ...]
    """Prometheus series, all of which are added up."""
    read: Callable[[NodeSnapshot], Reading[Series]]


def gauge(name: str) -> Gauge:
    """Raises KeyError whose text names the nearest."""
    return _find(GAUGES, name, "gauge")


def counter(name: str) -> Counter:
    """Raises KeyError whose text names the nearest."""
    within = _WITHIN.fullmatch(name)
    if within and float(within[1]) in TTFT_BOUNDS:
        return _first_tokens(float(within[1]))
    return _find(COUNTERS, name, "counter")


def _find(table: Mapping[str, T], name: str, kind: str) -> T:
    if name in table:
        return table[name]
    near = difflib.get_close_matches(name, table, 1, 0.5)
    hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(table)}"
    raise KeyError(f"no {kind} {name!r}; {hint}")


def _of(
    part: Callable[[NodeSnapshot], Reading[T]], take: Callable[[T], V | None], missing: str = ""
) -> Callable[[NodeSnapshot], Reading[V]]:
    """`take` gives None where the part is there and the number is not, for the reason `missing`."""

    def read(snapshot: NodeSnapshot) -> Reading[V]:
        reading = part(snapshot)
        if isinstance(reading, NotExposed):
            return reading
        value = take(reading.value)
        return NotExposed(missing) if value is None else Known(value, reading.at)

    return read


def _most(selector: str, by: tuple[str, ...] = INSTANCE) -> str:
    return f"max by ({', '.join(by)}) ({selector})"


def _sum(selector: str) -> str:
    return f"sum by ({', '.join(INSTANCE)}) ({selector})"


def _memory_used(ledger: MemoryLedger) -> float | None:
    return 1 - ledger.free / ledger.total if ledger.total else None


def _queue_used(queue: QueueState) -> float | None:
    return queue.waiting / queue.max_waiting if queue.max_waiting else None


def _drill(snapshot: NodeSnapshot) -> dict[str, str]:
    alerts = snapshot.alerts
    nonce = alerts.value.drill if isinstance(alerts, Known) else ""
    return {"nonce": nonce} if nonce else {}


GAUGES: dict[str, Gauge] = {
    each.name: each
    for each in (
        Gauge(
            "memory_used_ratio", "ratio", "memory of the device that is in use",
            f"1 - {_most(_MEMORY.format('free'))} / {_most(_MEMORY.format('total'))}",
            _of(lambda s: s.memory, _memory_used, "the device's memory has no size"),
        ),
        Gauge(
            "kv_usage_ratio", "ratio", "blocks of the KV pool that requests hold",
            _most("kvops_kv_usage_ratio"), _of(lambda s: s.kv, lambda kv: kv.usage_ratio),
        ),
        Gauge(
            "queue_used_ratio", "ratio", "waiting requests, of those that may wait",
            f"{_sum('kvops_requests_waiting')} / {_most('kvops_queue_limit_requests')}",
            _of(lambda s: s.queue, _queue_used, "nothing may wait: runtime.max_queue is 0"),
        ),
        Gauge(
            "queue_oldest_seconds", "seconds", "age of the longest-waiting request",
            _most("kvops_queue_oldest_seconds"),
            _of(lambda s: s.queue, lambda queue: queue.oldest_wait_seconds or 0.0),
        ),
        Gauge(
            "ttft_p95_seconds", "seconds", "time to first token that 95 % of the last minutes' requests met",
            _most("kvops_recent_time_to_first_token_p95_seconds"),
            _of(lambda s: s.latency, lambda latency: latency.ttft.p95, _PERCENTILE_NEEDS),
        ),
        Gauge(
            "stalled", "count", "1 while work is pending and the engine does not move",
            _most('kvops_node_state{state="stalled"}'),
            lambda s: Known(float(s.state == "stalled"), s.taken_at),
        ),
        Gauge(
            "invariant_violations", "count", "invariants of the block pool that are broken",
            _most("kvops_engine_invariant_violations"),
            _of(lambda s: s.progress, lambda progress: float(progress.invariant_violations)),
        ),
        Gauge(
            "quarantined_shapes", "count", "request shapes that are refused since engines died with them in flight",
            _most("kvops_quarantined_shapes"),
            _of(lambda s: s.progress, lambda progress: progress.quarantined, "this engine has no quarantine"),
        ),
        Gauge(
            "disk_free_bytes", "bytes", "room where the node keeps its state",
            _most("kvops_disk_free_bytes"), _of(lambda s: s.upkeep, lambda upkeep: float(upkeep.disk_free)),
        ),
        Gauge(
            "stale_files", "count", "watched files (keys, certificate) of which what was before is still in force",
            _most("kvops_stale_files"), _of(lambda s: s.upkeep, lambda upkeep: float(len(upkeep.stale_files))),
        ),
        Gauge(
            "audit_failing", "count", "1 while the audit cannot be written",
            _most("kvops_audit_failing"), _of(lambda s: s.upkeep, lambda upkeep: float(upkeep.audit_failing)),
        ),
        Gauge(
            "alert_undelivered_seconds", "seconds", "age of the oldest alert message that no receiver took",
            _most("kvops_alert_undelivered_seconds"),
            _of(lambda s: s.alerts, lambda alerts: alerts.oldest_undelivered_seconds),
        ),
        Gauge(
            "drill", "count", "1 while a delivery drill is on",
            _most("kvops_alert_drill", (*INSTANCE, "nonce")),
            _of(lambda s: s.alerts, lambda alerts: float(bool(alerts.drill))),
            labels=_drill, by=(*INSTANCE, "nonce"),
        ),
    )
}  # fmt: skip


def _failed(traffic: Traffic) -> Series:
    ended = {why: traffic.requests_by_outcome.get(why, 0) for why in ("error", "timeout")}
    return {**ended, **_refused(traffic)}


def _refused(traffic: Traffic) -> Series:
    reasons = traffic.rejections_by_reason.items()
    return {f"refused {why}": count for why, count in reasons if why not in CLIENT_FAULTS}


def _asked(traffic: Traffic) -> Series:
    return {**traffic.requests_by_outcome, **_refused(traffic)}


def _unallocated(traffic: Traffic) -> Series | None:
    return None if traffic.allocation_failures is None else _one(traffic.allocation_failures)


def _restarts(progress: Progress) -> Series | None:
    return progress.restarts_by_reason or None


def _delivery_failures(alerts: AlertsState) -> Series | None:
    channels = alerts.deliveries.items()
    return {name: outcomes.get("failed", 0) for name, outcomes in channels} or None


def _first_tokens(bound: float | None = None) -> Counter:
    """All first tokens, or those that came within `bound` seconds."""
    key = "+Inf" if bound is None else str(bound)
    suffix = "_count" if bound is None else f'_bucket{{le="{bound}"}}'

    def take(traffic: Traffic) -> Series | None:
        tiers = traffic.first_tokens_within.items()
        return {tier: within[key] for tier, within in tiers if key in within} or None

    return Counter(
        "first_tokens" if bound is None else f"ttft_within_{bound:g}s",
        "requests that got a first token" + ("" if bound is None else f" within {bound:g} s"),
        (f"kvops_time_to_first_token_seconds{suffix}",),
        _of(lambda s: s.traffic, take, "first tokens are not counted here"),
    )


def _one(count: int) -> Series:
    return {"": count}


COUNTERS: dict[str, Counter] = {
    each.name: each
    for each in (
        Counter(
            "requests", "requests that ended or were refused, without those that were wrong by themselves",
            ("kvops_requests_total", _REFUSED), _of(lambda s: s.traffic, _asked),
        ),
        Counter(
            "requests_failed", "requests that the node failed, timed out or turned away",
            ('kvops_requests_total{outcome=~"error|timeout"}', _REFUSED), _of(lambda s: s.traffic, _failed),
        ),
        Counter(
            "queue_overflows", "requests refused because the queue was full",
            ('kvops_request_rejections_total{reason="queue_full"}',),
            _of(lambda s: s.traffic, lambda t: _one(t.rejections_by_reason.get("queue_full", 0))),
        ),
        _first_tokens(),
        Counter(
            "generation_tokens", "tokens generated", ("kvops_generation_tokens_total",),
            _of(lambda s: s.traffic, lambda traffic: _one(traffic.generation_tokens)),
        ),
        Counter(
            "preemptions", "requests put back because no block was free", ("kvops_preemptions_total",),
            _of(lambda s: s.kv, lambda kv: _one(kv.preemptions)),
        ),
        Counter(
            "allocation_failures", "steps that the device had no memory for", ("kvops_allocation_failures_total",),
            _of(lambda s: s.traffic, _unallocated, "failed allocations are not counted here"),
        ),
        Counter(
            "engine_restarts", "engines that were replaced", ("kvops_engine_restarts_total",),
            _of(lambda s: s.progress, _restarts, "restarts are not counted by reason here"),
        ),
        Counter(
            "log_dropped", "log lines that could not be kept", ("kvops_log_dropped_total",),
            _of(lambda s: s.upkeep, lambda upkeep: _one(upkeep.log_dropped)),
        ),
        Counter(
            "audit_dropped", "audit records that could not be kept", ("kvops_audit_dropped_total",),
            _of(lambda s: s.upkeep, lambda upkeep: _one(upkeep.audit_dropped)),
        ),
        Counter(
            "alert_delivery_failures", "alert messages that were given up",
            ('kvops_alert_deliveries_total{outcome="failed"}',),
            _of(lambda s: s.alerts, _delivery_failures, "no channel is configured"),
        ),
    )
}  # fmt: skip


def read_any(name: str) -> Callable[[NodeSnapshot], Reading[Any]]:
    """The reading of that name, gauge or counter. Raises KeyError."""
    return gauge(name).read if name in GAUGES else counter(name).read

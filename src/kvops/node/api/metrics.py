"""`/metrics`: the node's picture in Prometheus text. What the node does not know is absent, never 0."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

import psutil
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from kvops import __version__
from kvops.node.api.alert_metrics import alert_metrics
from kvops.node.audit import AuditLog
from kvops.node.logs import dropped
from kvops.node.meter import REFUSALS
from kvops.node.state import NodeView
from kvops.telemetry.snapshot import Known, NodeSnapshot

STATES = ("loading", "ready", "draining", "stalled", "restarting", "stopping", "failed")
RESTART_REASONS = ("killed", "exited", "fatal", "stalled", "protocol")


def exposition(view: NodeView, audit: AuditLog) -> tuple[bytes, str]:
    """Text and content type."""
    registry = CollectorRegistry()
    registry.register(_NodeCollector(view, audit))
    return generate_latest(registry) + generate_latest(view.meter.registry), CONTENT_TYPE_LATEST


class _NodeCollector(Collector):
    def __init__(self, view: NodeView, audit: AuditLog) -> None:
        self._view = view
        self._audit = audit

    def collect(self) -> Iterator[Metric]:
        snapshot = self._view.snapshot()
        yield from _identity(snapshot)
        yield from _engine(snapshot, self._view)
        yield from _memory(snapshot)
        yield from _gpus(snapshot)
        yield from _kv(snapshot)
        yield from _queue(snapshot)
        yield from _traffic(snapshot)
        yield from _process()
        yield from _audited(self._audit)
        yield from alert_metrics(snapshot)
        yield _counter(
            "result_store_hits",
            "Requests answered with a kept result.",
            self._view.meter.stored_answers,
        )


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"kvops_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"kvops_{name}", text, value=value)


def _gauges(
    name: str, text: str, label: str, rows: Iterable[tuple[str, float]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"kvops_{name}", text, labels=[label])
    for key, value in rows:
        family.add_metric([key], value)
    return family


def _counters(
    name: str, text: str, label: str, rows: Iterable[tuple[str, float]]
) -> CounterMetricFamily:
    family = CounterMetricFamily(f"kvops_{name}", text, labels=[label])
    for key, value in rows:
        family.add_metric([key], value)
    return family


def _identity(snapshot: NodeSnapshot) -> Iterator[Metric]:
    yield InfoMetricFamily("kvops_build", "Version of kvops.", value={"version": __version__})
    if isinstance(snapshot.model, Known):
        model = snapshot.model.value
        labels = {
            "name": model.name,
            "family": model.family,
            "revision": model.revision,
            "weights_dtype": model.weights_dtype,
            "kv_dtype": model.kv_dtype,
            "max_model_len": str(model.max_model_len),
        }
        yield InfoMetricFamily("kvops_model", "The model that is served.", value=labels)
    yield _counter("log_dropped", "Log lines that could not be kept.", dropped())
    rows = [(state, float(state == snapshot.state)) for state in STATES]
    yield _gauges("node_state", "1 for the state the node is in.", "state", rows)


def _audited(audit: AuditLog) -> Iterator[Metric]:
    yield _counter("audit_dropped", "Audit records that could not be kept.", audit.dropped)
    yield _gauge("audit_failing", "1 while the audit cannot be written.", audit.failing)


def _engine(snapshot: NodeSnapshot, view: NodeView) -> Iterator[Metric]:
    yield _gauge(
        "engine_up", "1 while the engine process serves.", view.supervisor.state == "ready"
    )
    if isinstance(snapshot.progress, Known):
        progress = snapshot.progress.value
        yield _counter("engine_steps", "Engine steps.", progress.steps)
        yield _gauge(
            "engine_invariant_violations",
            "Block pool invariants found broken.",
            progress.invariant_violations,
        )
    restarts = [(reason, view.supervisor.restarts[reason]) for reason in RESTART_REASONS]
    yield _counters("engine_restarts", "Engine restarts.", "reason", restarts)
    quarantine = view.admission.quarantine
    yield _counter("requests_quarantined", "Requests refused by quarantine.", quarantine.refused)
    yield _gauge(
        "quarantined_shapes", "Request shapes that are in quarantine.", quarantine.quarantined
    )


def _process() -> Iterator[Metric]:
    """Of the daemon: what grows without end is a leak."""
    process = psutil.Process()
    with process.oneshot():
        yield _gauge("daemon_resident_bytes", "Memory of the daemon.", process.memory_info().rss)
        yield _gauge("daemon_threads", "Threads of the daemon.", process.num_threads())
    yield _gauge("daemon_open_files", "Descriptors of the daemon.", process.num_fds())
    yield _gauge("daemon_tasks", "Tasks of the daemon's event loop.", len(asyncio.all_tasks()))


def _memory(snapshot: NodeSnapshot) -> Iterator[Metric]:
    if not isinstance(snapshot.memory, Known):
        return
    ledger = snapshot.memory.value
    accounts = ("weights", "kv_reserved", "activations", "other", "free", "total")
    rows = [(name, float(getattr(ledger, name))) for name in accounts]
    yield _gauges("memory_bytes", "Device memory by account.", "account", rows)


def _gpus(snapshot: NodeSnapshot) -> Iterator[Metric]:
    if not isinstance(snapshot.gpus, Known):
        return
    gpus = snapshot.gpus.value
    busy = [(str(gpu.index), gpu.utilization) for gpu in gpus if gpu.utilization is not None]
    if busy:
        yield _gauges("gpu_utilization_ratio", "Time in which the GPU computed.", "gpu", busy)
    used = [(str(gpu.index), float(gpu.memory_used)) for gpu in gpus]
    yield _gauges("gpu_memory_used_bytes", "Memory of the GPU in use, by all.", "gpu", used)


def _kv(snapshot: NodeSnapshot) -> Iterator[Metric]:
    if isinstance(snapshot.kv, Known):
        kv = snapshot.kv.value
        yield _gauge("kv_block_size_tokens", "Tokens in a block.", kv.block_size)
        rows = [("used", kv.used_blocks), ("cached", kv.cached_blocks), ("free", kv.free_blocks)]
        yield _gauges("kv_blocks", "Blocks of the pool by state.", "state", rows)
        yield _gauge("kv_usage_ratio", "Blocks held by requests over all.", kv.usage_ratio)
        yield _gauge(
            "kv_waste_ratio", "Unused token slots over all slots of held blocks.", kv.waste_ratio
        )
        if kv.fragmentation_ratio is not None:
            help_text = "Held blocks that are not full, over all held blocks."
            yield _gauge("kv_fragmentation_ratio", help_text, kv.fragmentation_ratio)
        yield _counter("kv_evictions", "Cached blocks reclaimed.", kv.evictions)
        yield _counter("preemptions", "Requests put back for want of blocks.", kv.preemptions)
    if isinstance(snapshot.prefix_cache, Known):
        cache = snapshot.prefix_cache.value
        yield _counter("prefix_cache_query_tokens", "Prompt tokens looked up.", cache.query_tokens)
        yield _counter("prefix_cache_hit_tokens", "Prompt tokens found.", cache.hit_tokens)
    if isinstance(snapshot.tenants, Known):
        held = [(tenant.tenant, tenant.kv_blocks) for tenant in snapshot.tenants.value]
        yield _gauges("tenant_kv_blocks", "Blocks held by a tenant.", "tenant", held)
        quotas = [
            (tenant.tenant, tenant.kv_quota_blocks)
            for tenant in snapshot.tenants.value
            if tenant.kv_quota_blocks is not None
        ]
        yield _gauges("tenant_kv_quota_blocks", "Blocks a tenant may hold.", "tenant", quotas)


def _queue(snapshot: NodeSnapshot) -> Iterator[Metric]:
    if not isinstance(snapshot.queue, Known):
        return
    queue = snapshot.queue.value
    yield _gauge("requests_running", "Requests in the batch.", queue.running)
    yield _gauges(
        "requests_waiting", "Requests not yet started.", "class", queue.waiting_by_class.items()
    )
    yield _gauge(
        "queue_oldest_seconds",
        "Age of the longest-waiting request, 0 when nothing waits.",
        queue.oldest_wait_seconds or 0.0,
    )


def _traffic(snapshot: NodeSnapshot) -> Iterator[Metric]:
    if not isinstance(snapshot.traffic, Known):
        return
    traffic = snapshot.traffic.value
    yield _counters(
        "requests",
        "Admitted requests by how they ended.",
        "outcome",
        traffic.requests_by_outcome.items(),
    )
    # A series that starts with its first event hides that event from a rate.
    reasons = (dict.fromkeys(REFUSALS, 0) | traffic.rejections_by_reason).items()
    yield _counters("request_rejections", "Requests refused before admission.", "reason", reasons)
    yield _counter("prompt_tokens", "Prompt tokens of started requests.", traffic.prompt_tokens)
    yield _counter("generation_tokens", "Tokens generated.", traffic.generation_tokens)
    if traffic.allocation_failures is not None:
        help_text = "Engine steps that the device had no memory for."
        yield _counter("allocation_failures", help_text, traffic.allocation_failures)

"""One number or name of a node, for tables and sums: None or empty where it is not known."""

from __future__ import annotations

from kvops.telemetry.snapshot import Known, NodeSnapshot
from kvops.tui.text import clean
from kvops.tui.view import NodeView


def kv_usage(node: NodeView) -> float | None:
    kv = node.snapshot.kv if node.snapshot else None
    return kv.value.usage_ratio if isinstance(kv, Known) else None


def running(node: NodeView) -> int | None:
    queue = node.snapshot.queue if node.snapshot else None
    return queue.value.running if isinstance(queue, Known) else None


def waiting(node: NodeView) -> int | None:
    queue = node.snapshot.queue if node.snapshot else None
    return queue.value.waiting if isinstance(queue, Known) else None


def ttft_p95(node: NodeView) -> float | None:
    latency = node.snapshot.latency if node.snapshot else None
    return latency.value.ttft.p95 if isinstance(latency, Known) else None


def itl_p95(node: NodeView) -> float | None:
    latency = node.snapshot.latency if node.snapshot else None
    return latency.value.inter_token.p95 if isinstance(latency, Known) else None


def output_rate(node: NodeView) -> float | None:
    traffic = node.snapshot.traffic if node.snapshot else None
    return traffic.value.generation_tokens_per_second if isinstance(traffic, Known) else None


def hit_ratio(node: NodeView) -> float | None:
    cache = node.snapshot.prefix_cache if node.snapshot else None
    return cache.value.hit_ratio if isinstance(cache, Known) else None


def preemptions(node: NodeView) -> int | None:
    kv = node.snapshot.kv if node.snapshot else None
    return kv.value.preemptions if isinstance(kv, Known) else None


def model_name(snapshot: NodeSnapshot | None) -> str:
    return (
        clean(snapshot.model.value.name, 60)
        if snapshot and isinstance(snapshot.model, Known)
        else ""
    )


def engine_name(snapshot: NodeSnapshot | None) -> str:
    return clean(f"{snapshot.engine} {snapshot.engine_version}", 30) if snapshot else ""


_SHORT = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


def precision(snapshot: NodeSnapshot | None) -> str:
    """Weights / key-value precision, e.g. `q4_1/f32`."""
    if snapshot is None or not isinstance(snapshot.model, Known):
        return ""
    model = snapshot.model.value
    kinds = (clean(kind.lower(), 12) for kind in (model.weights_dtype, model.kv_dtype))
    return "/".join(_SHORT.get(kind, kind) for kind in kinds)

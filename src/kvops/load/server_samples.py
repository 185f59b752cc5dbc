"""The node beside the clients: about once a second what it tells of itself, on the load generator's own clock.

From the control plane's snapshot, else from `/metrics` of a node whose families are known here. What a node does
not tell is left out of a sample, and a node that tells nothing gets none.
"""

from __future__ import annotations

import http.client
from collections.abc import Callable
from typing import Any

import msgspec

from kvops.errors import NodeProtocolError
from kvops.load import clock
from kvops.load.client import Client
from kvops.load.records import ServerSample
from kvops.telemetry import prometheus
from kvops.telemetry.snapshot import Known, NodeSnapshot, decode_snapshot

TIMEOUT = 5.0
Take = Callable[[], ServerSample | None]
"""One sample; None when the node did not answer with one."""

_SNAPSHOT_FAULTS = (OSError, http.client.HTTPException, RecursionError, ValueError)


def source(client: Client, control_url: str | None, token: str | None) -> Take | None:
    """How to sample the node of `client`; None for one that tells nothing. Asks it."""
    takes: list[Take] = [lambda: _from_metrics(client)]
    if control_url is not None:
        control = Client(control_url, api_key=token)
        takes.insert(0, lambda: _from_control(control))
    return next((take for take in takes if take() is not None), None)


def _from_control(control: Client) -> ServerSample | None:
    try:
        answer = control.fetch("GET", "/control/snapshot", timeout=TIMEOUT)
        if answer.status != 200:
            return None
        return of_snapshot(decode_snapshot(answer.body), clock.now())
    except _SNAPSHOT_FAULTS:
        return None


_READINGS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "queue": lambda queue: {
        "running": queue.running, "waiting": queue.waiting, "queue_oldest": queue.oldest_wait_seconds,
    },
    "kv": lambda kv: {
        "kv_total": kv.total_blocks, "kv_used": kv.used_blocks, "kv_cached": kv.cached_blocks,
        "kv_usage": kv.usage_ratio, "preemptions": kv.preemptions, "evictions": kv.evictions,
    },
    "memory": lambda memory: {"memory_used": (memory.total - memory.free) / memory.total},
    "traffic": lambda traffic: {
        "prompt_tokens": traffic.prompt_tokens, "generation_tokens": traffic.generation_tokens,
        "requests": sum(traffic.requests_by_outcome.values()),
        "rejections": sum(traffic.rejections_by_reason.values()),
    },
    "prefix_cache": lambda cache: {
        "prefix_query_tokens": cache.query_tokens, "prefix_hit_tokens": cache.hit_tokens,
    },
    "progress": lambda progress: {
        "steps": progress.steps, "engine_restarts": progress.engine_restarts,
    },
}  # fmt: skip
"""By the name of a reading of the snapshot: the fields of a sample that it gives."""


def of_snapshot(seen: NodeSnapshot, at: float) -> ServerSample:
    fields: dict[str, Any] = {"at": at, "state": seen.state}
    for name, give in _READINGS.items():
        reading = getattr(seen, name)
        if isinstance(reading, Known):
            fields |= give(reading.value)
    return msgspec.convert(fields, ServerSample)


class _Family(msgspec.Struct, frozen=True):
    names: tuple[str, ...]
    """Of this family in the releases of an engine, the present one first."""
    labels: dict[str, str] = {}


def _f(*names: str, **labels: str) -> _Family:
    return _Family(names, labels)


FAMILIES: dict[str, dict[str, _Family]] = {
    "kvops_": {
        "running": _f("kvops_requests_running"),
        "waiting": _f("kvops_requests_waiting"),
        "queue_oldest": _f("kvops_queue_oldest_seconds"),
        "kv_total": _f("kvops_kv_blocks"),
        "kv_used": _f("kvops_kv_blocks", state="used"),
        "kv_cached": _f("kvops_kv_blocks", state="cached"),
        "kv_usage": _f("kvops_kv_usage_ratio"),
        "preemptions": _f("kvops_preemptions_total"),
        "evictions": _f("kvops_kv_evictions_total"),
        "prompt_tokens": _f("kvops_prompt_tokens_total"),
        "generation_tokens": _f("kvops_generation_tokens_total"),
        "prefix_query_tokens": _f("kvops_prefix_cache_query_tokens_total"),
        "prefix_hit_tokens": _f("kvops_prefix_cache_hit_tokens_total"),
        "requests": _f("kvops_requests_total"),
        "rejections": _f("kvops_request_rejections_total"),
        "steps": _f("kvops_engine_steps_total"),
        "engine_restarts": _f("kvops_engine_restarts_total"),
    },
    "vllm:": {
        "running": _f("vllm:num_requests_running"),
        "waiting": _f("vllm:num_requests_waiting"),
        "kv_usage": _f("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        "preemptions": _f("vllm:num_preemptions_total"),
        "prompt_tokens": _f("vllm:prompt_tokens_total"),
        "generation_tokens": _f("vllm:generation_tokens_total"),
        "prefix_query_tokens": _f("vllm:prefix_cache_queries_total"),
        "prefix_hit_tokens": _f("vllm:prefix_cache_hits_total"),
        "requests": _f("vllm:request_success_total"),
    },
}
"""By the prefix of an engine's names: which family each field of a sample is the sum of."""
_REAL = frozenset({"queue_oldest", "kv_usage"})
"""All other fields are whole numbers."""


def _from_metrics(client: Client) -> ServerSample | None:
    try:
        answer = client.fetch("GET", "/metrics", timeout=TIMEOUT)
        if answer.status != 200:
            return None
        return of_metrics(answer.body.decode(), clock.now())
    except (*_SNAPSHOT_FAULTS, NodeProtocolError):
        return None


def of_metrics(page: str, at: float) -> ServerSample | None:
    """None for a page without a known family. Raises NodeProtocolError."""
    for families in FAMILIES.values():
        wanted = {name for family in families.values() for name in family.names}
        # A page may hold thousands of histogram lines, and parsing them would delay the clients beside us.
        lines = [line for line in page.split("\n") if _name(line) in wanted]
        if not lines:
            continue
        read = prometheus.parse("\n".join(lines) + "\n")
        found = {field: _total(read, family) for field, family in families.items()}
        told = {
            field: value if field in _REAL else int(value)
            for field, value in found.items()
            if value is not None
        }
        return msgspec.convert({"at": at} | told, ServerSample)
    return None


def _name(line: str) -> str:
    return line.partition("{")[0].partition(" ")[0]


def _total(read: prometheus.Exposition, family: _Family) -> float | None:
    totals = (read.total(name, **family.labels) for name in family.names)
    return next((total for total in totals if total is not None), None)

"""Names that other servers and guides have for our settings: each with the setting that is meant, and its unit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

SPELLINGS = {"runtime.batch_window_ms": "runtime.batch_window"}
"""Taken in a file as they are: a number of milliseconds."""

_SECONDS, _MILLISECONDS = "write 120 seconds as 120s", "write 60000 milliseconds as 60s"
_WHOLE = "a share of what weights and a step leave free, not of the whole memory"
_DTYPES = "bf16 is bfloat16, fp32 float32"
NAMES: Mapping[str, tuple[str, str]] = {
    "precision": ("model.weights_dtype", _DTYPES),
    "dtype": ("model.weights_dtype", "for keys and values it is kv_cache.dtype"),
    "quantization": ("kv_cache.dtype", "none is auto; for the weights it is model.weights_dtype"),
    "kv_cache_dtype": ("kv_cache.dtype", _DTYPES),
    "revision": ("model.version", "kvops model list shows it"),
    "max_concurrency": ("runtime.max_concurrent_requests", "running and waiting together"),
    "max_running_requests": ("runtime.max_batch_size", ""),
    "max_num_seqs": ("runtime.max_batch_size", ""),
    "max_num_batched_tokens": ("runtime.max_batched_tokens", ""),
    "chunked_prefill_size": ("runtime.max_prefill_tokens", ""),
    "max_model_len": ("model.max_context_length", "input and output together"),
    "context_length": ("model.max_context_length", "input and output together"),
    "ctx_size": ("model.max_context_length", "input and output together"),
    "cache_reserve_ratio": ("kv_cache.memory_fraction", _WHOLE),
    "gpu_memory_utilization": ("kv_cache.memory_fraction", _WHOLE),
    "mem_fraction_static": ("kv_cache.memory_fraction", _WHOLE),
    "enable_prefix_caching": ("kv_cache.prefix_caching", ""),
    "batch_window_ms": ("runtime.batch_window", "write 20 milliseconds as 20ms"),
    "request_timeout_ms": ("runtime.request_timeout", _MILLISECONDS),
    "request_timeout_seconds": ("runtime.request_timeout", _SECONDS),
    "queue_timeout_ms": ("runtime.queue_timeout", _MILLISECONDS),
    "queue_timeout_seconds": ("runtime.queue_timeout", _SECONDS),
    "log_level": ("logging.level", ""),
}
"""By the last part of the key; none of them is the last part of a setting of ours, but `dtype`."""

_RATE = (
    "a rate is the gateway's to limit; a node bounds what is in it at once: runtime.max_concurrent_requests, "
    "and for each tenant tenants.NAME.max_running and max_waiting"
)
NOWHERE: Mapping[str, str] = {
    "rate_limit_per_second": _RATE,
    "rate_limit": _RATE,
    "tensor_parallel_size": "a node serves with one device: runtime.device; start a node for each GPU",
}
"""Those that no setting stands for, and what there is instead."""

IN_TENANT: Mapping[str, str] = {
    "concurrency": "did you mean max_running?",
    "priority": "did you mean class?",
    "keys": "keys name their tenant: kvops keys create --tenant NAME",
    "key_ids": "keys name their tenant: kvops keys create --tenant NAME",
}


def meant(key: str) -> tuple[str, str] | None:
    """The setting that another's key stands for, or nothing, and a word on it; None for a key that is nobody's."""
    last = key.rpartition(".")[2].lower().replace("-", "_")
    if last in NOWHERE:
        return "", NOWHERE[last]
    return NAMES.get(last)


def respelled(given: Mapping[str, Any]) -> tuple[dict[str, Any], Iterable[str]]:
    """Dotted keys as the schema spells them, and those that are there in both spellings."""
    values = {SPELLINGS.get(key, key): _in_unit(key, value) for key, value in given.items()}
    return values, [key for key in SPELLINGS if key in given and SPELLINGS[key] in given]


def _in_unit(key: str, value: Any) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value}ms" if key in SPELLINGS and number else value

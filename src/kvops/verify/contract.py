"""The metric families that a kvops node of this version exposes, with their Prometheus types.

Without hardware for it a family may be absent (`gpu_…`); those are not listed here.
"""

from __future__ import annotations

FAMILIES: dict[str, str] = {
    "kvops_build_info": "gauge",
    "kvops_model_info": "gauge",
    "kvops_node_state": "gauge",
    "kvops_engine_up": "gauge",
    "kvops_engine_steps_total": "counter",
    "kvops_engine_step_seconds": "histogram",
    "kvops_engine_restarts_total": "counter",
    "kvops_memory_bytes": "gauge",
    "kvops_kv_block_size_tokens": "gauge",
    "kvops_kv_blocks": "gauge",
    "kvops_kv_usage_ratio": "gauge",
    "kvops_kv_evictions_total": "counter",
    "kvops_kv_waste_ratio": "gauge",
    "kvops_kv_fragmentation_ratio": "gauge",
    "kvops_preemptions_total": "counter",
    "kvops_prefix_cache_query_tokens_total": "counter",
    "kvops_prefix_cache_hit_tokens_total": "counter",
    "kvops_requests_running": "gauge",
    "kvops_requests_waiting": "gauge",
    "kvops_queue_oldest_seconds": "gauge",
    "kvops_tenant_kv_blocks": "gauge",
    "kvops_tenant_kv_quota_blocks": "gauge",
    "kvops_requests_total": "counter",
    "kvops_request_rejections_total": "counter",
    "kvops_prompt_tokens_total": "counter",
    "kvops_generation_tokens_total": "counter",
    "kvops_time_to_first_token_seconds": "histogram",
    "kvops_inter_token_latency_seconds": "histogram",
    "kvops_time_per_output_token_seconds": "histogram",
    "kvops_request_queue_seconds": "histogram",
    "kvops_request_duration_seconds": "histogram",
    "kvops_request_prompt_tokens": "histogram",
    "kvops_request_generation_tokens": "histogram",
}

ONE_PER_REQUEST = (
    "kvops_requests_total",
    "kvops_time_to_first_token_seconds_count",
    "kvops_request_queue_seconds_count",
    "kvops_request_duration_seconds_count",
    "kvops_request_prompt_tokens_count",
    "kvops_request_generation_tokens_count",
)
"""Series that grow by one with every request that is answered."""

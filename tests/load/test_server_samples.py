"""What a node tells of itself, out of its snapshot and out of its metrics."""

from __future__ import annotations

from kvops.load import server_samples
from kvops.load.client import Client
from kvops.load.records import ServerSample
from tests.load.scripted import node, serving

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 7.0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 700.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 1234.0
# TYPE vllm:request_success_total counter
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 5.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 6.0
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="m"} 0.0
"""


def test_vllm_is_read_by_its_metrics_and_the_rest_is_not_exposed() -> None:
    assert server_samples.of_metrics(VLLM, 5.0) == ServerSample(
        at=5.0, running=5, waiting=7, kv_usage=0.25, prompt_tokens=1234, requests=11
    )
    assert server_samples.of_metrics("python_info 1.0\n", 5.0) is None


def test_a_node_that_tells_nothing_is_not_sampled() -> None:
    with serving(node) as server:
        assert server_samples.source(Client(server.url), None, None) is None
        assert server_samples.source(Client(server.url), server.url, "no token") is None

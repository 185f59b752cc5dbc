"""Every route of a running node and the shape of every answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvops.telemetry.snapshot import Known
from tests.harness import RunningNode
from tests.node.conftest import HTTP, chat, complete, error_of, eventually_idle, model_of


def events(text: str) -> list[Any]:
    """The data of each server-sent event; `[DONE]` stays a string."""
    lines = [
        block.removeprefix("data: ") for block in text.split("\n\n") if block.startswith("data: ")
    ]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def test_health(tiny_node: RunningNode) -> None:
    for path in ("/livez", "/readyz", "/health"):
        answer = HTTP.get(tiny_node.url + path)
        assert (answer.status_code, answer.json()["status"]) == (200, "ready")
        assert HTTP.head(tiny_node.url + path).status_code == 200


def test_models(tiny_node: RunningNode) -> None:
    (model,) = HTTP.get(f"{tiny_node.url}/v1/models").json()["data"]
    assert (model["object"], model["owned_by"], model["max_model_len"]) == ("model", "kvops", 512)


def test_completion(tiny_node: RunningNode) -> None:
    body = complete(tiny_node, max_tokens=5).json()
    (choice,) = body["choices"]
    assert body["object"] == "text_completion"
    assert choice["finish_reason"] == "length"
    assert choice["text"]
    usage = body["usage"]
    assert usage["completion_tokens"] == 5
    assert usage["total_tokens"] == usage["prompt_tokens"] + 5
    assert "truncated_tokens" not in usage


def test_default_output_lengths(tiny_node: RunningNode) -> None:
    assert complete(tiny_node).json()["usage"]["completion_tokens"] == 16
    usage = chat(tiny_node, max_tokens=None).json()["usage"]
    assert usage["total_tokens"] == 512


def test_a_repeated_prompt_is_served_from_the_cache(tiny_node: RunningNode) -> None:
    prompt = "cached " * 20
    complete(tiny_node, prompt)
    again = complete(tiny_node, prompt).json()["usage"]
    assert 0 < again["prompt_tokens_details"]["cached_tokens"] < again["prompt_tokens"]


def test_streamed_and_whole_completions_agree(tiny_node: RunningNode) -> None:
    whole = complete(tiny_node, max_tokens=24).json()["choices"][0]
    stream = complete(tiny_node, max_tokens=24, stream=True)
    assert stream.headers["content-type"].startswith("text/event-stream")
    *chunks, done = events(stream.text)
    assert done == "[DONE]"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["text"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-1] == "length"
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_streamed_chat(tiny_node: RunningNode) -> None:
    *chunks, counts, done = events(
        chat(tiny_node, stream=True, stream_options={"include_usage": True}).text
    )
    assert done == "[DONE]"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(
        chunk["usage"] is None and chunk["object"] == "chat.completion.chunk" for chunk in chunks
    )
    assert counts["choices"] == []
    assert counts["usage"]["completion_tokens"] == 8
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == chat(tiny_node).json()["choices"][0]["message"]["content"]


def test_a_stream_without_the_option_has_no_usage(tiny_node: RunningNode) -> None:
    assert all(
        "usage" not in chunk
        for chunk in events(chat(tiny_node, stream=True).text)
        if chunk != "[DONE]"
    )


def test_n_choices_and_several_prompts(tiny_node: RunningNode) -> None:
    body = complete(tiny_node, ["one", "two"], n=2, temperature=1, seed=7, max_tokens=6).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert body["usage"]["completion_tokens"] == 24
    again = complete(tiny_node, ["one", "two"], n=2, temperature=1, seed=7, max_tokens=6).json()
    assert [c["text"] for c in again["choices"]] == [c["text"] for c in body["choices"]]
    assert body["choices"][0]["text"] != body["choices"][1]["text"]


def test_streamed_choices_carry_their_index(tiny_node: RunningNode) -> None:
    *chunks, _ = events(complete(tiny_node, n=3, stream=True, temperature=1, max_tokens=4).text)
    ended = [c["choices"][0]["index"] for c in chunks if c["choices"][0]["finish_reason"]]
    assert sorted(ended) == [0, 1, 2]


def test_token_ids_as_prompt(tiny_node: RunningNode) -> None:
    tokens = HTTP.post(f"{tiny_node.url}/v1/tokenize", json={"prompt": "hello"}).json()["tokens"]
    assert (
        complete(tiny_node, tokens).json()["choices"]
        == complete(tiny_node, "hello").json()["choices"]
    )
    assert len(complete(tiny_node, [tokens, tokens]).json()["choices"]) == 2


def test_tokenize(tiny_node: RunningNode) -> None:
    messages = [{"role": "user", "content": "hello"}]
    body = HTTP.post(f"{tiny_node.url}/v1/tokenize", json={"messages": messages}).json()
    assert body["count"] == len(body["tokens"]) == chat(tiny_node).json()["usage"]["prompt_tokens"]
    assert body["max_model_len"] == 512


def test_stop_string(tiny_node: RunningNode) -> None:
    text = complete(tiny_node, max_tokens=40).json()["choices"][0]["text"]
    stop = text[10:13]
    choice = complete(tiny_node, max_tokens=40, stop=[stop, "never"]).json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["text"] == text[: text.index(stop)]
    *chunks, _ = events(complete(tiny_node, max_tokens=40, stop=stop, stream=True).text)
    assert "".join(c["choices"][0]["text"] for c in chunks) == choice["text"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    eventually_idle(tiny_node)


def test_logprobs_of_completions(tiny_node: RunningNode) -> None:
    choice = complete(tiny_node, max_tokens=4, logprobs=2).json()["choices"][0]
    table = choice["logprobs"]
    assert len(table["tokens"]) == len(table["token_logprobs"]) == len(table["text_offset"]) == 4
    assert all(len(top) == 2 for top in table["top_logprobs"])
    assert all(value <= 0 for value in table["token_logprobs"])
    assert table["text_offset"][0] == 0


def test_logprobs_of_chats_whole_and_streamed(tiny_node: RunningNode) -> None:
    whole = chat(tiny_node, logprobs=True, top_logprobs=3).json()["choices"][0]["logprobs"][
        "content"
    ]
    assert len(whole) == 8
    assert all(len(row["top_logprobs"]) == 3 and row["logprob"] <= 0 for row in whole)
    *chunks, _ = events(chat(tiny_node, logprobs=True, top_logprobs=3, stream=True).text)
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    streamed = [row for part in parts if part for row in part["content"]]
    assert [row["token"] for row in streamed] == [row["token"] for row in whole]


def test_content_parts_and_roles(tiny_node: RunningNode) -> None:
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    assert chat(tiny_node, parts).json()["choices"] == chat(tiny_node, "hello").json()["choices"]
    roles = [{"role": role, "content": "hi"} for role in ("system", "user")]
    developer = [{"role": "developer", "content": "hi"}, roles[1]]
    answers = [
        chat(tiny_node, messages=messages).json()["choices"] for messages in (roles, developer)
    ]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("policy", ["truncate_head", "truncate_middle", "truncate_tail"])
@pytest.mark.parametrize("stream", [False, True])
def test_truncation_is_announced(tiny_node: RunningNode, policy: str, stream: bool) -> None:
    prompt = [5 + n % 50 for n in range(700)]
    answer = complete(
        tiny_node, prompt, max_tokens=12, over_length=policy, stream=stream,
        **({"stream_options": {"include_usage": True}} if stream else {}),
    )  # fmt: skip
    usage = events(answer.text)[-2]["usage"] if stream else answer.json()["usage"]
    assert answer.headers["x-kvops-truncated"] == "200"
    assert (usage["truncated_tokens"], usage["prompt_tokens"]) == (200, 500)


def test_the_context_limit_to_the_token(tiny_node: RunningNode) -> None:
    assert complete(tiny_node, [9] * 500, max_tokens=12).status_code == 200
    for prompt, output in ((500, 13), (512, 1), (511, 2), (2000, 1)):
        error = error_of(complete(tiny_node, [9] * prompt, max_tokens=output))
        assert error["code"] == "context_length_exceeded"
        assert (error["prompt_tokens"], error["limit"]) == (prompt, 512)
    assert (
        error_of(chat(tiny_node, "long " * 900, max_tokens=None))["code"]
        == "context_length_exceeded"
    )


def test_metrics_have_the_contract_names(tiny_node: RunningNode) -> None:
    complete(tiny_node)
    text = HTTP.get(f"{tiny_node.url}/metrics").text
    kinds = dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE"))
    gauges = (
        "node_state engine_up memory_bytes kv_block_size_tokens kv_blocks kv_usage_ratio kv_waste_ratio "
        "kv_fragmentation_ratio requests_running requests_waiting queue_oldest_seconds tenant_kv_blocks "
        "build_info model_info"
    )
    counters = (
        "engine_steps engine_restarts kv_evictions preemptions prefix_cache_query_tokens prefix_cache_hit_tokens "
        "requests request_rejections prompt_tokens generation_tokens"
    )
    histograms = (
        "engine_step_seconds time_to_first_token_seconds inter_token_latency_seconds time_per_output_token_seconds "
        "request_queue_seconds request_duration_seconds request_prompt_tokens request_generation_tokens"
    )
    assert all(kinds[f"kvops_{name}"] == "gauge" for name in gauges.split())
    assert all(kinds[f"kvops_{name}_total"] == "counter" for name in counters.split())
    assert all(kinds[f"kvops_{name}"] == "histogram" for name in histograms.split())
    assert not any("gpu" in name or name.endswith("_created") for name in kinds)


def test_snapshot_adds_up(tiny_node: RunningNode) -> None:
    for _ in range(5):
        complete(tiny_node)
    eventually_idle(tiny_node)
    snapshot = tiny_node.snapshot()
    assert (snapshot.state, snapshot.engine, snapshot.url) == ("ready", "kvops", tiny_node.url)
    assert isinstance(snapshot.memory, Known)
    assert isinstance(snapshot.kv, Known)
    assert isinstance(snapshot.latency, Known)
    memory, kv = snapshot.memory.value, snapshot.kv.value
    assert memory.total == (
        memory.weights + memory.kv_reserved + memory.activations + memory.other + memory.free
    )
    assert kv.total_blocks == kv.used_blocks + kv.cached_blocks + kv.free_blocks
    assert snapshot.latency.value.ttft.samples >= 5
    assert not isinstance(snapshot.gpus, Known)


def test_control_routes(tiny_node: RunningNode) -> None:
    assert tiny_node.control("GET", "/control/requests").json()["value"] == []
    drawn = tiny_node.control("GET", "/control/kv/map?cells=16").json()
    assert (drawn["total_blocks"], len(drawn["cells"])) == (128, 16)
    settings = tiny_node.control("GET", "/control/config").json()
    assert settings["config"]["name"] == "tiny"
    assert settings["origins"]["name"].startswith("file ")
    complete(tiny_node, "to be flushed " * 10)
    eventually_idle(tiny_node)
    assert tiny_node.control("POST", "/control/flush").json()["blocks"] > 0
    assert tiny_node.control("POST", "/control/cancel", json={"request_id": "none"}).json() == {
        "cancelled": False
    }
    assert error_of(tiny_node.control("GET", "/control/kv/map?cells=0"))["param"] == "cells"
    assert tiny_node.control("GET", "/control/nothing").status_code == 404


def test_control_stream(tiny_node: RunningNode) -> None:
    headers = {"Authorization": f"Bearer {tiny_node.token}"}
    seen = []
    with HTTP.stream(
        "GET", f"{tiny_node.control_url}/control/stream?hz=20", headers=headers
    ) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: "):
                seen.append(json.loads(line.removeprefix("data: "))["taken_at"])
            if len(seen) == 3:
                break
    assert seen == sorted(set(seen))
    assert error_of(tiny_node.control("GET", "/control/stream?hz=nan"))["param"] == "hz"


def test_the_control_plane_refuses_strangers(tiny_node: RunningNode) -> None:
    url = f"{tiny_node.control_url}/control/snapshot"
    good = {"Authorization": f"Bearer {tiny_node.token}"}
    port = tiny_node.control_url.rpartition(":")[2]
    assert HTTP.get(url, headers=good | {"Host": f"localhost:{port}"}).status_code == 200
    assert error_of(HTTP.get(url))["code"] == "invalid_api_key"
    assert (
        error_of(HTTP.get(url, headers={"Authorization": "Bearer x"}))["code"] == "invalid_api_key"
    )
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", "127.0.0.1:1", ""):
        assert HTTP.get(url, headers=good | {"Host": host}).status_code in (400, 403), host
    assert (
        error_of(HTTP.get(url, headers=good | {"Origin": tiny_node.control_url}))["code"]
        == "forbidden"
    )


def test_drain_and_resume(tiny_node: RunningNode) -> None:
    assert tiny_node.kvops("node", "drain").returncode == 0
    try:
        ready = HTTP.get(f"{tiny_node.url}/readyz")
        assert (ready.status_code, ready.json()["status"]) == (404, "draining")
        assert HTTP.get(f"{tiny_node.url}/livez").status_code == 200
        body = {"model": "llama", "prompt": "x"}
        refused = HTTP.post(f"{tiny_node.url}/v1/completions", json=body)
        assert (refused.status_code, error_of(refused)["code"]) == (503, "draining")
    finally:
        assert tiny_node.kvops("node", "resume").returncode == 0
    assert HTTP.get(f"{tiny_node.url}/readyz").status_code == 200
    assert complete(tiny_node).status_code == 200


def test_status_of_the_command_line(tiny_node: RunningNode) -> None:
    (row,) = json.loads(tiny_node.kvops("node", "status", "--json").stdout)
    assert (row["name"], row["state"], row["model"]) == ("tiny", "ready", model_of(tiny_node))
    assert row["kv_usage_ratio"] == 0
    assert "tiny" in tiny_node.kvops("node", "status").stdout
    assert tiny_node.kvops("node", "status", "--node", "other").returncode == 4

"""A prompt that is too long, end to end: what is refused, what is cut, and how the answer says so."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvops.load.haystack import build, make_needle
from tests.harness import RunningNode, start_node
from tests.node.conftest import HTTP, chat, complete, error_of

LIMIT = 512
CUTS = ("truncate_head", "truncate_middle", "truncate_tail")
LONG = "the lazy dog jumps over the quick brown fox and a node holds blocks of keys. " * 60


def count(node: RunningNode, **body: Any) -> int:
    return int(HTTP.post(f"{node.url}/v1/tokenize", json=body).json()["count"])


def last_usage(answer: httpx.Response) -> dict[str, Any]:
    """Of a whole answer or a stream."""
    if not answer.text.startswith("data:"):
        return dict(answer.json()["usage"])
    events = [json.loads(part[6:]) for part in answer.text.split("\n\n") if "{" in part]
    return dict(events[-1]["usage"])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("policy", CUTS)
def test_a_cut_prompt_says_so(tiny_node: RunningNode, policy: str, stream: bool) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    prompt = [n % 300 for n in range(700)]
    answer = complete(tiny_node, prompt, max_tokens=12, over_length=policy, **options)
    assert answer.status_code == 200
    assert answer.headers["x-kvops-truncated"] == "200"
    usage = last_usage(answer)
    assert (usage["truncated_tokens"], usage["prompt_tokens"]) == (200, LIMIT - 12)
    assert usage["completion_tokens"] == 12


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("policy", CUTS)
def test_a_cut_chat_says_so(tiny_node: RunningNode, policy: str, stream: bool) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    answer = chat(tiny_node, LONG, max_tokens=12, over_length=policy, **options)
    assert answer.status_code == 200
    removed = int(answer.headers["x-kvops-truncated"])
    usage = last_usage(answer)
    assert usage["truncated_tokens"] == removed > 0
    assert usage["prompt_tokens"] == LIMIT - 12


def test_a_cut_prompt_is_answered_like_what_is_left_of_it(tiny_node: RunningNode) -> None:
    prompt = [n % 300 for n in range(700)]
    kept = {
        "truncate_head": prompt[-500:],
        "truncate_tail": prompt[:500],
        "truncate_middle": prompt[:250] + prompt[-250:],
    }
    for policy, rest in kept.items():
        cut = complete(tiny_node, prompt, max_tokens=12, over_length=policy)
        plain = complete(tiny_node, rest, max_tokens=12)
        assert cut.json()["choices"] == plain.json()["choices"]
        assert "x-kvops-truncated" not in plain.headers
        assert "truncated_tokens" not in plain.json()["usage"]


def test_a_cut_chat_is_answered_like_the_chat_with_less_said(tiny_node: RunningNode) -> None:
    """The frame is whole: the same answer as to a chat whose message was that short from the start."""
    words = "0123456789 " * 300
    cut = chat(tiny_node, words, max_tokens=12, over_length="truncate_tail")
    removed = int(cut.headers["x-kvops-truncated"])
    messages = [{"role": "user", "content": words}]
    tokens = HTTP.post(f"{tiny_node.url}/v1/tokenize", json={"messages": messages}).json()["tokens"]
    frame = HTTP.post(
        f"{tiny_node.url}/v1/tokenize", json={"messages": [{"role": "user", "content": ""}]}
    ).json()["tokens"]
    end = frame[len(frame) - 5 :]
    assert tokens[-5:] == end
    closing = next(n for n in range(1, len(frame)) if tokens[-n:] != frame[-n:]) - 1
    kept = tokens[: len(tokens) - closing - removed] + tokens[len(tokens) - closing :]
    plain = complete(tiny_node, kept, max_tokens=12)
    assert plain.json()["choices"][0]["text"] == cut.json()["choices"][0]["message"]["content"]


def test_reject_is_the_default_and_a_request_may_insist_on_it(tiny_node: RunningNode) -> None:
    answer = chat(tiny_node, LONG)
    error = error_of(answer)
    assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
    assert error["limit"] == LIMIT
    messages = [{"role": "user", "content": LONG}]
    assert error["prompt_tokens"] == count(tiny_node, messages=messages)


@pytest.fixture(scope="module")
def cutting_node(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningNode]:
    settings: dict[str, object] = {
        "model": {"name": str(tiny_model)},
        "kv_cache": {"blocks": 64},
        "runtime": {"threads": 1, "over_length": "truncate_middle"},
    }
    node = start_node(tmp_path_factory.mktemp("cutting"), settings, name="cutting")
    yield node
    assert node.stop() == 0


def test_a_node_may_cut_by_default(cutting_node: RunningNode) -> None:
    assert int(chat(cutting_node, LONG).headers["x-kvops-truncated"]) > 0
    refused = chat(cutting_node, LONG, over_length="reject")
    assert error_of(refused)["code"] == "context_length_exceeded"
    frame_alone = [{"role": "user", "content": ""}] * 200
    body = {"model": "tiny-llama", "messages": frame_alone, "max_tokens": 4}
    over = HTTP.post(f"{cutting_node.url}/v1/chat/completions", json=body)
    assert error_of(over)["code"] == "context_length_exceeded", "there is nothing to cut"


@pytest.mark.model
def test_a_needle_is_found_only_where_it_was_kept(default_model_home: Path, tmp_path: Path) -> None:
    """Of 750 tokens about 500 fit, the middle goes: what lay there is gone, and the answer says so."""
    (tmp_path / "data").symlink_to(default_model_home / "data")
    settings: dict[str, object] = {
        "model": {"name": "smollm2-135m", "max_context_length": 512},
        "runtime": {"over_length": "truncate_middle"},
    }
    node = start_node(tmp_path, settings, name="needles")
    try:
        found = {
            depth: [_recalls(node, seed, depth) for seed in range(2)] for depth in (10, 50, 90)
        }
    finally:
        node.stop()
    assert found[50] == [False] * 2
    assert sum(found[10]) + sum(found[90]) >= 3


def _recalls(node: RunningNode, seed: int, depth: float) -> bool:
    source = random.Random(seed)
    needle = make_needle(source)

    def tokens(text: str) -> int:
        return count(node, messages=[{"role": "user", "content": text}])

    prompt = build(source, needle, 750, depth, tokens)
    answer = chat(node, prompt.text, max_tokens=24, ignore_eos=False)
    removed = int(answer.headers["x-kvops-truncated"])
    assert prompt.tokens - removed + 24 == 512
    return needle.value in answer.json()["choices"][0]["message"]["content"]

"""Wild and nearly right bodies on the POST routes: an answer or an error object each time, and an unharmed engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvops.telemetry.snapshot import Known
from tests.harness import RunningNode
from tests.node.conftest import HTTP, complete, error_of, eventually_idle

ROUTES = ("/v1/completions", "/v1/chat/completions")
FUZZ = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
wild = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
)
small = st.integers(1, 8)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "stream": st.booleans(),
    "stream_options": st.just({"include_usage": True}),
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0.0, 1.0),
    "top_k": st.integers(0, 400),
    "min_p": st.floats(0, 1),
    "frequency_penalty": st.floats(-2, 2),
    "presence_penalty": st.floats(-2, 2),
    "repetition_penalty": st.floats(0.01, 2),
    "logit_bias": st.dictionaries(st.integers(0, 321).map(str), st.floats(-100, 100), max_size=5),
    "seed": st.integers(-(2**63), 2**63 - 1),
    "n": st.integers(1, 4),
    "stop": st.text(min_size=1, max_size=5) | st.lists(st.text(min_size=1, max_size=5), max_size=4),
    "stop_token_ids": st.lists(st.integers(0, 321), max_size=4),
    "min_tokens": st.integers(0, 3),
    "ignore_eos": st.booleans(),
    "priority": st.sampled_from(["online", "normal", "batch"]),
    "over_length": st.sampled_from(["reject", "truncate_head", "truncate_middle", "truncate_tail"]),
}
COMPLETION = {"logprobs": st.integers(0, 20)}
CHAT = {
    "logprobs": st.booleans(),
    "top_logprobs": st.integers(0, 20),
    "max_completion_tokens": small,
}
prompts = (
    st.text(max_size=40)
    | st.lists(st.integers(0, 321), max_size=40)
    | st.lists(st.text(max_size=9), max_size=3)
)
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant"]), "content": st.text(max_size=30)}
    ),
    min_size=1,
    max_size=4,
)


@st.composite
def near(draw: st.DrawFn, required: dict[str, Any], optional: dict[str, Any]) -> dict[str, Any]:
    """A valid body, at times with one field of another kind."""
    body: dict[str, Any] = draw(st.fixed_dictionaries(required, optional=FIELDS | optional))
    if draw(st.booleans()):
        spoilt = draw(st.sampled_from(sorted(body)) | st.text(max_size=6))
        body[spoilt] = draw(wild)
    return body


@pytest.fixture(scope="module")
def unharmed(tiny_node: RunningNode) -> Iterator[RunningNode]:
    """Afterwards the engine still steps, holds nothing, never restarted, and says what it said before."""

    def canary() -> Any:
        return complete(tiny_node, "canary", max_tokens=16).json()["choices"]

    before, steps = canary(), progress(tiny_node).steps
    yield tiny_node
    eventually_idle(tiny_node)
    assert canary() == before
    eventually_idle(tiny_node)
    after = progress(tiny_node)
    assert after.steps > steps
    assert (after.engine_restarts, after.invariant_violations) == (0, 0)


def progress(node: RunningNode) -> Any:
    reading = node.snapshot().progress
    assert isinstance(reading, Known)
    return reading.value


def check(node: RunningNode, path: str, content: bytes) -> None:
    answer = HTTP.post(
        node.url + path, content=content, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code < 500 or answer.status_code == 503, (path, content, answer.text)
    if answer.status_code >= 400:
        error_of(answer)
    elif "text/event-stream" in answer.headers["content-type"]:
        assert answer.text.endswith("data: [DONE]\n\n"), (path, content, answer.text[-300:])


def encoded(body: Any) -> bytes:
    return json.dumps(body).encode()


@given(
    body=near({"model": st.just("tiny-llama"), "prompt": prompts, "max_tokens": small}, COMPLETION)
)
@FUZZ
def test_completions(unharmed: RunningNode, body: dict[str, Any]) -> None:
    check(unharmed, ROUTES[0], encoded(body))


@given(body=near({"model": st.just("tiny-llama"), "messages": messages, "max_tokens": small}, CHAT))
@FUZZ
def test_chats(unharmed: RunningNode, body: dict[str, Any]) -> None:
    check(unharmed, ROUTES[1], encoded(body))


@given(
    path=st.sampled_from(ROUTES),
    body=wild | st.dictionaries(st.sampled_from(["model", "prompt", "messages"]), wild),
)
@FUZZ
def test_wild_json(unharmed: RunningNode, path: str, body: Any) -> None:
    check(unharmed, path, encoded(body))


@given(path=st.sampled_from(ROUTES), body=st.binary(max_size=200))
@FUZZ
def test_bytes(unharmed: RunningNode, path: str, body: bytes) -> None:
    check(unharmed, path, body)

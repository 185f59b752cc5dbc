"""The official client works against a node as it is."""

from __future__ import annotations

import openai
import pytest

from tests.harness import RunningNode

NODES = ["tiny_node", pytest.param("smol_node", marks=pytest.mark.model)]


@pytest.fixture(params=NODES)
def client(request: pytest.FixtureRequest) -> openai.OpenAI:
    node: RunningNode = request.getfixturevalue(request.param)
    return openai.OpenAI(base_url=f"{node.url}/v1", api_key="unused", max_retries=0, timeout=60)


@pytest.fixture
def model(client: openai.OpenAI) -> str:
    return client.models.list().data[0].id


def test_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert (model.object, model.owned_by) == ("model", "kvops")


def test_completion(client: openai.OpenAI, model: str) -> None:
    answer = client.completions.create(
        model=model, prompt="The capital of France is", max_tokens=8, temperature=0
    )
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage is not None
    assert 0 < answer.usage.completion_tokens <= 8


def test_chat(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model,
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Say hello."},
        ],
        max_completion_tokens=8,
        temperature=0,
        logprobs=True,
        top_logprobs=2,
        n=2,
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == answer.choices[1].message.content
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert all(len(token.top_logprobs) == 2 for token in logprobs.content)


def test_streamed_chat_with_usage(client: openai.OpenAI, model: str) -> None:
    messages: list[openai.types.chat.ChatCompletionMessageParam] = [
        {"role": "user", "content": "Count to five."}
    ]
    whole = client.chat.completions.create(
        model=model, messages=messages, max_tokens=8, temperature=0
    )
    stream = client.chat.completions.create(
        model=model, messages=messages, max_tokens=8, temperature=0,
        stream=True, stream_options={"include_usage": True},
    )  # fmt: skip
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[
        0
    ].finish_reason


def test_errors_are_the_clients_own(client: openai.OpenAI, model: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=model, prompt="x", max_tokens=10_000_000)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="another", prompt="x")

"""What a long body costs: it is counted before objects are made of it, and read where nobody waits for it."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from fastapi.exceptions import RequestValidationError

from kvops.config.schema import Limits
from kvops.errors import InvalidRequest
from kvops.node.api.counts import MAX_PARTS, check_counts
from kvops.node.api.fields import Body
from kvops.node.api.jsonbody import JsonRequest
from tests.harness import RunningNode
from tests.node.conftest import HTTP, complete, error_of, model_of

LONG = 200_000
PART = {"type": "text", "text": ""}


class Note(Body):
    text: str


def said(*counts: int) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [PART] * count} for count in counts]}


def test_text_parts_have_a_bound_in_all_messages_together() -> None:
    check_counts(said(1000, MAX_PARTS - 1000), Limits())
    with pytest.raises(InvalidRequest, match=f"at most {MAX_PARTS} text parts") as caught:
        check_counts(said(1000, MAX_PARTS - 999), Limits())
    assert caught.value.param == "messages"


def test_messages_are_counted_whatever_they_are() -> None:
    check_counts({"messages": [None] * 1024}, Limits())
    with pytest.raises(InvalidRequest, match="at most 1024 messages are accepted; these are 1025"):
        check_counts({"messages": [None] * 1025}, Limits())


@pytest.mark.parametrize("body", [3, [], {}, {"messages": "x"}, {"messages": [3, {"content": 3}]}])
def test_another_shape_is_left_to_the_schema(body: Any) -> None:
    check_counts(body, Limits())


async def load(body: bytes) -> tuple[JsonRequest, list[int]]:
    """The request, and in which threads its body was validated."""
    threads = []

    def validate(value: Any) -> tuple[Any, list[Any]]:
        threads.append(threading.get_ident())
        return (Note(**value), []) if value.keys() == {"text"} else (None, [{"type": "wrong"}])

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    request = JsonRequest(
        {"type": "http", "headers": [(b"content-type", b"application/json")]}, receive
    )
    await request.load(Limits(), validate)
    return request, threads


async def test_a_long_body_is_validated_in_another_thread() -> None:
    request, threads = await load(json.dumps({"text": "x" * LONG}).encode())
    assert await request.json() == Note(text="x" * LONG)
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


async def test_a_long_body_that_is_wrong_is_refused_there() -> None:
    with pytest.raises(RequestValidationError):
        await load(json.dumps({"texts": "x" * LONG}).encode())


async def test_a_short_body_is_left_to_the_route() -> None:
    request, threads = await load(b'{"text": "x"}')
    assert (await request.json(), threads) == ({"text": "x"}, [])


def test_a_long_body_is_answered_as_a_short_one(tiny_node: RunningNode) -> None:
    def asked(**fields: Any) -> tuple[int, Any]:
        body = {"model": model_of(tiny_node), "prompt": "x", "max_tokens": 2, "temperature": 0}
        answer = HTTP.post(
            f"{tiny_node.url}/v1/completions",
            content=padded(body | fields),
            headers={"Content-Type": "application/json"},
        )
        found = answer.json()
        return answer.status_code, found.get("error") or found["choices"]

    def padded(body: dict[str, Any]) -> bytes:
        return json.dumps(body).encode().ljust(size)

    for fields in ({}, {"max_tokens": 0}, {"colour": "red"}, {"stop": 3}):
        size = 0
        short = asked(**fields)
        size = LONG
        assert asked(**fields) == short


def test_too_many_token_ids_are_refused_before_any_is_looked_at(tiny_node: RunningNode) -> None:
    none_of_the_model = [2**30] * 700
    refused = complete(tiny_node, none_of_the_model, max_tokens=4)
    assert error_of(refused)["code"] == "context_length_exceeded"
    assert error_of(refused)["prompt_tokens"] == 700
    cut = complete(tiny_node, none_of_the_model, max_tokens=4, over_length="truncate_head")
    assert error_of(cut)["code"] == "invalid_request"

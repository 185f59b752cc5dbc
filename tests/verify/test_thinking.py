"""The gate before a model that thinks: short answers of thinking alone are answers, and it says what they are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kvops.telemetry.targets import Target
from kvops.verify import runner
from kvops.verify.checks import CHECKS
from kvops.verify.profile import Entry, Profile
from kvops.verify.result import CheckResult
from kvops.verify.selection import plan
from tests.load.scripted import LIMIT, MODEL, Reply, Request, serving

THINKING = {"reasoning": "We are asked"}
CALL = {"tool_calls": [{"index": 0, "function": {"name": "look", "arguments": "{}"}}]}
USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}


def answering(message: dict[str, Any]) -> Callable[[Request, Reply], None]:
    """A node of another engine whose chats say this, whole or streamed."""

    def respond(request: Request, reply: Reply) -> None:
        if request.path == "/v1/models":
            reply.json(200, {"data": [{"id": MODEL, "max_model_len": LIMIT, "owned_by": "vllm"}]})
        elif request.path == "/health":
            reply.json(200, {})
        elif request.path == "/v1/completions":
            reply.json(200, whole({"text": " red, blue"}))
        elif request.path != "/v1/chat/completions":
            reply.json(404, {})
        elif request.json().get("stream"):
            stream(reply, message)
        else:
            reply.json(200, whole({"message": {"role": "assistant", "content": None} | message}))

    return respond


def whole(part: dict[str, Any]) -> dict[str, Any]:
    return {"id": "x", "choices": [{"index": 0, "finish_reason": "length"} | part], "usage": USAGE}


def stream(reply: Reply, message: dict[str, Any]) -> None:
    reply.stream()
    reply.role()
    reply.event({"choices": [{"delta": message, "finish_reason": None}]})
    reply.content("", "length")
    reply.event({"choices": [], "usage": USAGE})
    reply.done()


def ask(message: dict[str, Any]) -> dict[str, CheckResult]:
    checks = [Entry(id=one, timeout=60, parameters={}) for one in ("resp.short", "resp.stream")]
    profile = Profile(schema_version=1, name="two", checks=checks)
    with serving(answering(message)) as server:
        target = Target(name="thinker", url=server.url)
        report = asyncio.run(runner.run(target, None, "t", plan(profile, CHECKS, ())))
    return {result.id: result for result in report.checks}


@pytest.mark.parametrize(
    ("message", "kind"), [(THINKING, "thinking"), (CALL, "a tool call")], ids=["thinking", "call"]
)
def test_an_answer_without_a_word_is_told_for_what_it_is(
    message: dict[str, Any], kind: str
) -> None:
    found = ask(message)
    assert {one.verdict for one in found.values()} == {"pass"}, found
    assert f"/v1/chat/completions: {kind} alone" in str(found["resp.short"].observed)
    assert f"same {kind}" in str(found["resp.stream"].observed)


def test_an_answer_of_nothing_still_fails() -> None:
    found = ask({"content": ""})
    assert {one.verdict for one in found.values()} == {"fail"}
    assert "empty text" in str(found["resp.short"].observed)
    assert "no text delta" in str(found["resp.stream"].observed)

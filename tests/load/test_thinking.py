"""Answers of models that think before they speak, or call a tool in place of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvops.load import scenarios
from kvops.load.records import ErrorClass
from tests.load.driven import drive, plan
from tests.load.scripted import Reply, Request, node, serving
from tests.load.test_session import right, sent

PAUSE = 0.15


def streaming(*deltas: dict[str, Any]) -> Callable[[Request, Reply], None]:
    def respond(request: Request, reply: Reply) -> None:
        if request.path != "/v1/chat/completions":
            return node(request, reply)
        reply.stream()
        reply.role()
        for delta in deltas:
            time.sleep(PAUSE)
            reply.event({"choices": [{"delta": delta, "finish_reason": None}]})
        reply.usage(9, len(deltas))
        return reply.done()

    return respond


THOUGHT = {"reasoning": "let me see"}
CALL = {"tool_calls": [{"index": 0, "function": {"name": "look", "arguments": "{}"}}]}


def test_a_record_holds_the_first_token_and_the_first_word_apart() -> None:
    with serving(streaming(THOUGHT, THOUGHT, {"content": "17"})) as server:
        (one,) = sent(server.url, right)
    assert one.ttft is not None
    assert one.first_content is not None
    assert PAUSE <= one.ttft < one.first_content
    assert one.first_content >= 3 * PAUSE
    assert len(one.itl) == 2


def test_where_all_is_text_both_are_one() -> None:
    with serving(node) as server:
        (one,) = sent(server.url, right)
    assert one.first_content == one.ttft is not None


@pytest.mark.parametrize(
    ("deltas", "failure"),
    [((THOUGHT,), None), ((CALL,), None), (({},), ErrorClass.EMPTY_OUTPUT)],
    ids=["thinking alone", "a tool call alone", "nothing"],
)
def test_only_an_answer_without_a_token_is_empty(
    tmp_path: Path, deltas: tuple[dict[str, Any], ...], failure: ErrorClass | None
) -> None:
    with serving(streaming(*deltas)) as server:
        run, records = drive(plan(server.url, tmp_path, users=1, duration=1.0))
    assert run.info.status == "finished", run.info.reason
    assert records
    assert {one.error_class for one in records if not one.cancelled} == {failure}
    assert all(one.first_content is None for one in records)


def test_a_number_that_was_only_thought_of_is_not_recalled_and_it_says_why(tmp_path: Path) -> None:
    chosen = scenarios.find("needle_recall")
    options = chosen.parse(["--lengths", "128", "--depths", "50"])
    with serving(streaming(THOUGHT)) as server:
        made = plan(server.url, tmp_path, duration=30.0)
        _, records = drive(msgspec.structs.replace(made, scenario=chosen, options=options))
    (asked,) = (one for one in records if one.needle is not None and one.needle.depth is not None)
    assert asked.error_class is ErrorClass.WRONG_ANSWER
    assert "thinking alone, without a word" in (asked.error or "")

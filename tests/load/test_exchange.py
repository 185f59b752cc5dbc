"""The quick way of reading an event says what the whole way says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvops.load import exchange
from kvops.load.exchange import Exchange

ODD: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.text(max_size=3), st.integers(), st.just([]), st.just({})
)
CALL = {"index": 0, "function": {"name": "look", "arguments": "{}"}}
CALLS: st.SearchStrategy[Any] = st.one_of(ODD, st.just([CALL]), st.lists(ODD, max_size=2))
DELTA = st.fixed_dictionaries(
    {},
    optional={
        "role": ODD,
        "content": ODD,
        "reasoning": ODD,
        "reasoning_content": ODD,
        "tool_calls": CALLS,
        "function_call": st.one_of(ODD, st.just(CALL["function"])),
    },
)
CHOICE = st.fixed_dictionaries(
    {},
    optional={
        "index": st.just(0),
        "delta": st.one_of(st.none(), DELTA),
        "message": st.one_of(st.none(), DELTA),
        "text": ODD,
        "finish_reason": st.one_of(st.none(), st.sampled_from(["stop", "length"])),
        "logprobs": ODD,
    },
)
EVENT = st.fixed_dictionaries(
    {"id": st.just("x")},
    optional={
        "choices": st.one_of(st.none(), st.lists(CHOICE, max_size=2)),
        "usage": st.one_of(st.none(), st.just({"prompt_tokens": 3, "completion_tokens": 1})),
        "error": st.one_of(st.none(), st.just({"code": "engine_restarted", "message": "m"})),
    },
)


@settings(suppress_health_check=[HealthCheck.too_slow])  # of a machine that others keep busy
@given(EVENT)
def test_quick_and_whole_reading_agree(event: dict[str, Any]) -> None:
    data = json.dumps(event).encode()
    quick, whole = Exchange(), Exchange()
    exchange.take_event(data, 1.5, quick)
    exchange._take_whole(data, 1.5, whole)
    assert quick == whole


def streamed(*deltas: dict[str, Any]) -> Exchange:
    """One that got these, a second apart."""
    got = Exchange()
    for at, delta in enumerate(deltas, 1):
        event = {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        exchange.take_event(json.dumps(event).encode(), float(at), got)
    return got


ROLE = {"role": "assistant", "content": ""}


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_thinking_is_tokens_and_the_first_word_of_the_answer_is_timed_apart(name: str) -> None:
    got = streamed(ROLE, {name: "let me"}, {name: " see", "content": None}, {"content": "42"}, {})
    assert (got.ttft, got.gaps, got.first_content) == (2.0, (1.0, 1.0), 4.0)
    assert (got.thinking, got.text) == ("let me see", "42")


def test_thinking_that_is_sent_under_both_names_is_counted_once() -> None:
    got = streamed({"reasoning": "so", "reasoning_content": "so"})
    assert (got.thinking, got.deltas) == ("so", [1.0])


def test_pieces_of_a_tool_call_are_tokens_and_no_text() -> None:
    opening = {"index": 0, "id": "c1", "type": "function", "function": {"name": "look"}}
    piece = {"index": 0, "function": {"arguments": '{"at":'}}
    empty = {"index": 0, "function": {"arguments": ""}}
    got = streamed(
        ROLE, *({"tool_calls": [one]} for one in (opening, empty, piece)), {"tool_calls": []}
    )
    assert (got.deltas, got.first_content) == ([2.0, 4.0], None)
    assert (got.calls, got.text) == ('look{"at":', "")
    assert (bool(got.said), got.said.kind) == (True, "a tool call")


def test_an_answer_of_nothing_is_told_from_one_of_thinking_alone() -> None:
    assert not streamed(ROLE, {"content": None, "reasoning": "", "tool_calls": []}).said
    assert streamed(ROLE, {"reasoning": "hm"}).said.kind == "thinking"


def test_a_whole_answer_has_the_same_parts_and_no_times() -> None:
    got = Exchange()
    message = {"content": "42", "reasoning": "let me see", "tool_calls": [CALL]}
    exchange.take_choice({"choices": [{"message": message, "finish_reason": "stop"}]}, got)
    assert (got.text, got.thinking, got.calls) == ("42", "let me see", "look{}")
    assert (got.deltas, got.first_content) == ([], None)

"""The quick way of reading an event says what the whole way says."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvops.load import exchange
from kvops.load.exchange import Exchange

ODD: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.text(max_size=3), st.integers(), st.just([]), st.just({})
)
DELTA = st.fixed_dictionaries(
    {}, optional={"role": ODD, "content": ODD, "reasoning_content": ODD, "tool_calls": ODD}
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

"""The over-length policies: refused with numbers, or cut where they say, always with room for the output."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvops.config.schema import OverLength
from kvops.errors import ContextLengthExceeded, KvQuotaExceeded
from kvops.node.length import Fitted, Segment, Worth, limit_of
from kvops.node.length import fit as fit_segments

PROMPT = list(range(100))


def fit(
    prompt: list[int], asked: int | None, usual: int | None, limit: int, policy: OverLength
) -> Fitted:
    return fit_segments([Segment(prompt)], asked, usual, limit, policy)


def test_what_fits_is_left_alone() -> None:
    fitted = fit(PROMPT, 28, 16, 128, "reject")
    assert (fitted.tokens, fitted.max_tokens, fitted.removed) == (tuple(PROMPT), 28, 0)


def test_an_open_end_takes_what_is_left() -> None:
    assert fit(PROMPT, None, None, 128, "reject").max_tokens == 28


def test_the_usual_output_shrinks_to_what_is_left() -> None:
    assert fit(PROMPT, None, 16, 110, "reject").max_tokens == 10


@pytest.mark.parametrize(("asked", "limit"), [(29, 128), (None, 100), (1, 100), (500, 400)])
def test_reject_names_the_numbers(asked: int | None, limit: int) -> None:
    with pytest.raises(ContextLengthExceeded) as caught:
        fit(PROMPT, asked, None, limit, "reject")
    error = caught.value.body()["error"]
    assert (error["prompt_tokens"], error["limit"]) == (100, limit)


def test_where_each_policy_cuts() -> None:
    assert fit(PROMPT, 10, None, 20, "truncate_head").tokens == tuple(range(90, 100))
    assert fit(PROMPT, 10, None, 20, "truncate_tail").tokens == tuple(range(10))
    assert fit(PROMPT, 10, None, 20, "truncate_middle").tokens == (
        0,
        1,
        2,
        3,
        4,
        95,
        96,
        97,
        98,
        99,
    )


def test_no_policy_makes_room_for_an_output_as_long_as_the_limit() -> None:
    with pytest.raises(ContextLengthExceeded):
        fit(PROMPT, 20, None, 20, "truncate_head")


@pytest.mark.parametrize("policy", ["reject", "truncate_middle"])
def test_a_cut_is_not_advised_where_it_cannot_help(policy: OverLength) -> None:
    for asked in (128, 9000):
        with pytest.raises(ContextLengthExceeded) as caught:
            fit([1], asked, None, 128, policy)
        assert "truncate" not in caught.value.hint
        assert "less than 128" in caught.value.hint


@given(
    st.integers(1, 300),
    st.none() | st.integers(1, 300),
    st.none() | st.just(16),
    st.integers(16, 256),
    st.sampled_from(["truncate_head", "truncate_middle", "truncate_tail", "reject"]),
)
def test_the_result_always_fits(
    length: int, asked: int | None, usual: int | None, limit: int, policy: OverLength
) -> None:
    try:
        fitted = fit(list(range(length)), asked, usual, limit, policy)
    except ContextLengthExceeded:
        assert length + (asked or 1) > limit
        return
    assert len(fitted.tokens) + fitted.max_tokens <= limit
    assert len(fitted.tokens) >= 1
    assert fitted.max_tokens == asked or (asked is None and fitted.max_tokens >= 1)
    assert len(fitted.tokens) + fitted.removed == length


CHAT = [
    Segment([-1, -2], Worth.FRAME),
    Segment(range(10), Worth.SYSTEM),
    Segment([-3], Worth.FRAME),
    Segment(range(10, 20)),
    Segment([-4], Worth.FRAME),
    Segment(range(20, 30)),
    Segment([-5, -6], Worth.FRAME),
]
"""36 tokens: a system message, two others, and the frame around them."""


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        ("truncate_head", range(24, 30)),
        ("truncate_tail", range(10, 16)),
        ("truncate_middle", [10, 11, 12, 27, 28, 29]),
    ],
)
def test_of_a_chat_only_the_messages_are_cut(policy: OverLength, kept: list[int]) -> None:
    fitted = fit_segments(CHAT, 8, None, 30, policy)
    assert [token for token in fitted.tokens if token < 0] == [-1, -2, -3, -4, -5, -6]
    assert [token for token in fitted.tokens if token >= 0] == [*range(10), *kept]
    assert fitted.removed == 14


def test_the_system_message_goes_last() -> None:
    fitted = fit_segments(CHAT, 8, None, 20, "truncate_tail")
    assert fitted.tokens == (-1, -2, 0, 1, 2, 3, 4, 5, -3, -4, -5, -6)
    with pytest.raises(ContextLengthExceeded):
        fit_segments(CHAT, 8, None, 14, "truncate_tail")


def test_a_quota_bounds_what_the_model_would_take() -> None:
    assert limit_of(50, 10, 128, None, "reject") == limit_of(50, 10, 128, 500, "reject") == 128
    assert limit_of(50, 10, 128, 64, "reject") == 64
    assert limit_of(60, 10, 128, 64, "truncate_head") == 64
    assert limit_of(200, 10, 128, 64, "reject") == 128, "no model would take it: that is said"
    for policy in ("reject", "truncate_head"):
        with pytest.raises(KvQuotaExceeded):
            limit_of(20, 64, 128, 64, policy)  # type: ignore[arg-type]

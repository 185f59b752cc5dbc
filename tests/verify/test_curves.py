from __future__ import annotations

import pytest

from kvops.load.statistics.curves import first_jump, fit, geometric, predicted, steps
from kvops.verify.checks.performance import Row, confirmed
from kvops.verify.timing import Timed

LENGTHS = [32, 64, 128, 256, 512, 1024, 2048]
A, B, C = 0.012, 0.0012, 5e-7


def times(lengths: list[int], c: float = C) -> list[float]:
    return [A + B * n + c * n * n for n in lengths]


def test_the_fit_finds_the_costs_that_made_the_times() -> None:
    a, b, c = fit(LENGTHS, times(LENGTHS), 2)
    assert (a, b, c) == (pytest.approx(A), pytest.approx(B), pytest.approx(C))


@pytest.mark.parametrize("c", [0.0, 5e-7, 1e-4])
def test_what_attention_costs_is_no_jump(c: float) -> None:
    assert first_jump(LENGTHS, times(LENGTHS, c), 2, factor=3, floor=0.02) is None


@pytest.mark.parametrize("at", [1, 2, 4, 6])
def test_ten_times_what_shorter_prompts_predict_is_a_jump_wherever_it_sets_in(at: int) -> None:
    cliff = [t * (30 if i >= at else 1) for i, t in enumerate(times(LENGTHS))]
    jump = first_jump(LENGTHS, cliff, 2, factor=3, floor=0.02)
    assert jump is not None
    assert (jump.index, jump.length) == (at, LENGTHS[at])
    assert jump.times > 3


def test_a_small_excess_is_no_jump_however_many_times_it_is() -> None:
    assert first_jump([32, 64], [0.001, 0.019], 2, factor=3, floor=0.02) is None
    assert first_jump([32, 64], [0.001, 0.030], 2, factor=3, floor=0.02) is not None


def test_two_lengths_predict_no_more_than_the_square_of_their_ratio() -> None:
    assert predicted([100, 200], [0.1, 0.2], 2, 400) == pytest.approx(0.8)
    assert predicted([100, 200], [0.1, 0.1], 1, 400) == pytest.approx(0.2)


def test_each_step_says_what_it_grew_and_what_it_may() -> None:
    first, second = steps([100, 200, 400], [1.0, 3.0, 8.0], 2)
    assert (first.before, first.length, first.grew, first.may_grow) == (100, 200, 3, 4)
    assert (second.before, second.length) == (200, 400)
    assert second.may_grow == pytest.approx(4), "two lengths are too few to fit"
    assert steps([100], [1.0], 2) == []


def test_a_prediction_never_falls_with_the_length() -> None:
    assert predicted([32, 64, 128], [0.3, 0.2, 0.1], 2, 256) >= 0.1


@pytest.mark.parametrize(
    ("shortest", "longest", "found"),
    [(32, 256, [32, 64, 128, 256]), (32, 200, [32, 64, 128, 200]), (32, 32, [32]), (64, 32, [64])],
)
def test_lengths_double_up_to_the_longest(shortest: int, longest: int, found: list[int]) -> None:
    assert geometric(shortest, longest) == found


def row(tokens: int, ttft: list[float]) -> Row:
    asked = [
        Timed(prompt_tokens=tokens, cached_tokens=0, completion_tokens=8, ttft=t, last=t + 0.07)
        for t in ttft
    ]
    return Row(tokens, tuple(asked))


def first_tokens(row: Row) -> list[float]:
    return row.ttft


def test_a_jump_that_the_best_of_more_readings_does_not_show_is_none() -> None:
    rows = [row(64, [0.1, 0.1, 0.1]), row(128, [0.2, 4.0, 4.0, 4.0])]
    assert confirmed(rows, 1, first_tokens, 2, 3, 0.02) is None
    rows = [row(64, [0.1, 0.1, 0.1]), row(128, [3.9, 4.0, 4.0, 4.0])]
    jump = confirmed(rows, 1, first_tokens, 2, 3, 0.02)
    assert jump is not None
    assert jump.seconds == 3.9


@pytest.mark.parametrize(("tokens", "pace"), [(None, None), (3, None), (8, 0.01)])
def test_a_pace_asks_for_enough_tokens_and_usage(tokens: int | None, pace: float | None) -> None:
    one = Timed(prompt_tokens=9, cached_tokens=0, completion_tokens=tokens, ttft=0.1, last=0.17)
    assert one.per_token == (None if pace is None else pytest.approx(pace))

"""The warm-up is found by rule, and what drifts is not called steady."""

from __future__ import annotations

import numpy as np
import pytest

from kvops.load.records import RequestRecord
from kvops.load.statistics import after_warm_up, steadiness, trend, warm_up
from tests.load.made import answer


def requests(ttfts: np.ndarray) -> list[RequestRecord]:
    return [answer("a", 100.0 + at, ttft=float(ttft)) for at, ttft in enumerate(ttfts)]


def level(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).gamma(20, 0.05 / 20, count)


@pytest.mark.parametrize("seed", range(5))
def test_a_slow_start_is_left_out_and_little_more(seed: int) -> None:
    ttfts = level(600, seed)
    ttfts[:60] += np.linspace(1.0, 0.1, 60)
    records = requests(ttfts)
    found = warm_up(records)
    assert 55 <= found.dropped <= 200
    assert found.share == found.dropped / 600
    assert len(after_warm_up(records, found)) == 600 - found.dropped
    assert f"first {found.dropped} of 600 requests" in found.statement


def test_equal_answers_have_no_warm_up() -> None:
    found = warm_up(requests(np.full(300, 0.05)))
    assert (found.dropped, found.statement) == (0, "no warm-up was found")


def test_never_more_than_half_is_left_out() -> None:
    ttfts = level(400, 1)
    ttfts[:300] += np.linspace(5, 1, 300)
    found = warm_up(requests(ttfts))
    assert (found.until, found.dropped) == (None, 0)
    assert "no end of a warm-up" in found.statement


def test_too_few_answers_say_so_and_nothing_is_left_out() -> None:
    found = warm_up(requests(level(99, 1)))
    assert (found.until, found.dropped) == (None, 0)
    assert "99 of 100" in found.statement
    assert steadiness(requests(level(99, 1))).steady is None


def test_what_does_not_change_is_steady() -> None:
    """A drift is claimed with 99 % confidence: of 40 runs without any at most 2."""
    found = [steadiness(requests(level(300, seed))).steady for seed in range(40)]
    assert found.count(True) >= 38
    assert found.count(None) == 0


def test_a_first_token_that_grows_is_no_steady_state() -> None:
    found = steadiness(requests(level(400, 3) * np.linspace(1.0, 1.6, 400)))
    assert found.steady is False
    assert "the median time to the first token grew by" in found.statement


def test_a_pace_that_grows_is_no_steady_state() -> None:
    records = [
        answer("a", at, itl=0.02 * (1 + at / 400), ttft=float(ttft))
        for at, ttft in enumerate(level(400, 4))
    ]
    found = steadiness(records)
    assert "the median time per token grew by" in found.statement


def test_a_trend_is_not_pulled_by_outliers() -> None:
    at = np.arange(100.0)
    values = 5 + 0.3 * at
    values[::7] = 1000.0
    found = trend(at, values)
    assert found is not None
    assert found.slope == pytest.approx(0.3, rel=0.1)
    assert found.low <= found.slope <= found.high


def test_noise_has_no_trend_and_few_points_neither() -> None:
    noise = np.random.default_rng(5).normal(10, 1, 80)
    found = trend(np.arange(80.0), noise)
    assert found is not None
    assert found.is_flat
    assert found.surest_change == 0
    assert trend([1.0, 2.0], [1.0, 2.0]) is None
    assert trend([1.0] * 50, noise[:50]) is None

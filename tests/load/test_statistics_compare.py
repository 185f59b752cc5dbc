"""Better, same, worse or too few: a test with a floor, and sameness that is shown."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from kvops.load.statistics.compare import Comparison, compare, compare_shares, compare_tails


def sample(seed: int, count: int = 400, scale: float = 1.0) -> np.ndarray:
    return scale * np.random.default_rng(seed).lognormal(0, 0.3, count)


@pytest.mark.parametrize(
    ("scale", "direction", "outcome"),
    [
        (1.0, "lower", "same"),
        (1.03, "lower", "same"),
        (1.3, "lower", "worse"),
        (0.7, "lower", "better"),
        (1.3, "higher", "better"),
        (0.7, "higher", "worse"),
    ],
)
def test_a_shift_beyond_the_tolerance_is_found(scale: float, direction: str, outcome: str) -> None:
    found = compare(sample(1), sample(2, scale=scale), direction=direction)  # type: ignore[arg-type]
    assert found.outcome == outcome
    assert found.shift == pytest.approx(scale - 1, abs=0.06)


def test_sure_but_small_is_no_change() -> None:
    """A shift of 4 % that no chance explains is under the floor of 10 %."""
    found = compare(sample(1, 5000), sample(2, 5000, scale=1.04))
    assert found.p_value is not None
    assert found.p_value < 1e-6
    assert found.outcome == "same"


@pytest.mark.parametrize("count", [0, 1, 4])
def test_a_handful_of_values_says_nothing(count: int) -> None:
    found = compare([1.0] * count, [9.0] * 100)
    assert found.outcome == "too few"
    assert found.shift is None


def test_too_few_to_show_sameness_is_not_the_same() -> None:
    assert compare(sample(1, 12), sample(2, 12)).outcome == "too few"


def test_chance_alone_is_seldom_called_a_change() -> None:
    """Of 200 pairs of equal samples 5 % differ by the test, give or take three standard errors."""
    outcomes = [compare(sample(seed, 40), sample(seed + 1000, 40)).outcome for seed in range(200)]
    changes = outcomes.count("worse") + outcomes.count("better")
    assert changes <= 200 * 0.05 + 3 * math.sqrt(200 * 0.05 * 0.95)


def test_failures_are_slow() -> None:
    before, after = sample(1).tolist(), sample(2).tolist()
    found = compare(before, after[:300] + [math.inf] * 160)
    assert found.outcome == "worse"
    assert compare([math.inf] * 300 + before[:100], after).outcome == "too few"


def test_zeros_on_both_sides_are_the_same() -> None:
    assert compare([0.0] * 20, [0.0] * 20).outcome == "same"
    assert compare([0.0] * 20, [1.0] * 20).outcome == "too few"


def test_test_and_effect_are_those_of_scipy() -> None:
    old, new = sample(1, 50), sample(2, 60, scale=1.1)
    theirs = stats.mannwhitneyu(new, old, alternative="two-sided")
    found = compare(old, new)
    above, below = np.sum(new[:, None] > old), np.sum(new[:, None] < old)
    assert found.p_value == pytest.approx(float(theirs.pvalue))
    assert found.cliffs_delta == pytest.approx((above - below) / (50 * 60))
    assert found.shift == pytest.approx(np.median(np.subtract.outer(new, old)) / np.median(old))


def test_the_interval_holds_the_true_shift_as_often_as_it_says() -> None:
    """Samples of 30 with a shift of 0.5 and a spread of 1: 95 % of 300 intervals, less three standard errors."""
    inside = 0
    for seed in range(300):
        random = np.random.default_rng(seed)
        found = compare(random.normal(10, 1, 30), random.normal(10.5, 1, 30))
        scale = found.before or math.nan
        inside += (found.shift_low or -1) * scale <= 0.5 <= (found.shift_high or -1) * scale
    assert inside >= 300 * 0.95 - 3 * math.sqrt(300 * 0.95 * 0.05)


def test_thinned_samples_give_nearly_the_same_shift() -> None:
    old, new = sample(1, 3000), sample(2, 2500, scale=1.2)
    exact = np.median(np.subtract.outer(new, old)) / np.median(old)
    assert compare(old, new).shift == pytest.approx(exact, abs=0.003)


def test_a_slow_tail_that_ranks_hardly_see_is_found() -> None:
    before, after = sample(1, 1000), sample(1, 1000)
    after[:130] += 20
    assert compare(before, after, tolerance=0.2).outcome == "same"
    assert compare_tails(before, after).outcome == "worse"
    assert compare_tails(before, sample(3, 1000)).outcome == "same"


def test_failures_are_a_slow_tail_even_where_there_were_some() -> None:
    before = [1.0] * 900 + [math.inf] * 100
    assert compare_tails(before, [1.0] * 700 + [math.inf] * 300).outcome == "worse"


def test_the_difference_of_two_shares_is_newcombes() -> None:
    """56 of 70 against 48 of 80 (Newcombe 1998, table II, method 10): 0.0524 to 0.3339."""
    found = compare_shares((48, 80), (56, 70), direction="higher", tolerance=0.05)
    assert found.shift == pytest.approx(0.2)
    assert (found.shift_low, found.shift_high) == pytest.approx((0.0524, 0.3339), abs=5e-5)
    assert found.outcome == "better"


def test_shares_without_samples_or_with_few_say_nothing() -> None:
    assert compare_shares((0, 0), (1, 10)).outcome == "too few"
    assert compare_shares((0, 20), (0, 20)).outcome == "too few"
    assert compare_shares((0, 2000), (0, 2000)).outcome == "same"
    assert compare_shares((0, 2000), (200, 2000)).outcome == "worse"


def test_it_can_be_read() -> None:
    worse = compare(sample(1), sample(2, scale=1.5))
    assert str(worse).startswith("worse: +5")
    assert "tolerance 10 %" in str(worse)
    few: Comparison = compare([1.0], [2.0])
    assert str(few) == "too few: 1 values before, 1 after"

"""What may be claimed from how many samples."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from kvops.load.statistics import claim, minimum_samples, wilson


@pytest.mark.parametrize(
    ("share", "needed"),
    [(0.90, (44, 64, 81, 97)), (0.95, (90, 130, 165, 198)), (0.99, (459, 662, 838, 1001))],
)
def test_the_fewest_samples_are_those_of_early_stopping(share: float, needed: tuple[int]) -> None:
    assert tuple(minimum_samples(share, over) for over in range(4)) == needed
    assert minimum_samples(0.999) == 4603


@pytest.mark.parametrize(("share", "needed"), [(0.95, (59, 93)), (0.99, (299, 473))])
def test_less_confidence_needs_fewer(share: float, needed: tuple[int, int]) -> None:
    assert tuple(minimum_samples(share, over, 0.95) for over in range(2)) == needed


@pytest.mark.parametrize("share", [0.0, 1.0, 95.0])
def test_a_share_is_between_0_and_1(share: float) -> None:
    with pytest.raises(ValueError, match="share"):
        minimum_samples(share)


@pytest.mark.parametrize(
    ("samples", "over", "outcome", "needed"),
    [
        (459, 0, "holds", 459),
        (458, 0, "too few", 459),
        (662, 1, "holds", 662),
        (661, 1, "too few", 662),
        (100, 2, "too few", 838),
        (100, 10, "refuted", None),
        (0, 0, "too few", 459),
    ],
)
def test_a_bound_on_p99_is_claimed_only_with_enough_samples(
    samples: int, over: int, outcome: str, needed: int | None
) -> None:
    found = claim([0.1] * (samples - over) + [3.0] * over, 0, 0.99, 1.0)
    assert (found.outcome, found.samples, found.over) == (outcome, samples, over)
    assert needed is None or found.needed == needed


def test_a_failure_is_over_every_bound() -> None:
    alone = claim([0.1] * 500, 0, 0.99, 1.0)
    shedding = claim([0.1] * 490, 10, 0.99, 1.0)
    assert (alone.outcome, shedding.outcome) == ("holds", "too few")
    assert shedding.over == 10
    assert "10 of 500 over it; needs" in str(shedding)


def test_a_value_at_the_bound_is_within_it() -> None:
    assert claim([1.0] * 459, 0, 0.99, 1.0).over == 0


@given(samples=st.integers(1, 3000), share=st.sampled_from([0.5, 0.9, 0.95, 0.99]), data=st.data())
def test_what_holds_would_be_rare_if_it_were_false(
    samples: int, share: float, data: st.DataObject
) -> None:
    over = data.draw(st.integers(0, samples))
    found = claim([0.0] * (samples - over), over, share, 1.0)
    is_rare = stats.binom.cdf(over, samples, 1 - share) <= 0.01 + 1e-12
    is_refuted = stats.binom.sf(over - 1, samples, 1 - share) <= 0.01 + 1e-12
    expected = "holds" if is_rare else "refuted" if is_refuted else "too few"
    assert found.outcome == expected


@given(n=st.integers(1, 500), data=st.data(), confidence=st.sampled_from([0.90, 0.95, 0.99]))
def test_wilson_is_that_of_scipy(n: int, data: st.DataObject, confidence: float) -> None:
    hits = data.draw(st.integers(0, n))
    theirs = stats.binomtest(hits, n).proportion_ci(confidence, method="wilson")
    assert wilson(hits, n, confidence) == pytest.approx((theirs.low, theirs.high), abs=1e-9)
    assert wilson(0, 0) is None

from __future__ import annotations

import pytest

from kvops.verify.check import Finding
from kvops.verify.checks.truth import Pair, TruthParameters, judge

P = TruthParameters()
TRIP = 0.002


def pairs(client: float, node: float | None, count: int = 8) -> list[Pair]:
    return [Pair(client, node)] * count


def verdict(found: list[Pair], trip: float = TRIP) -> str:
    try:
        return judge(found, trip, P).verdict
    except Finding as finding:
        return finding.outcome.verdict


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (pairs(0.5, 0.497), "pass"),
        (pairs(0.5, 0.001), "fail"),
        (pairs(0.5, 0.3), "fail"),
        (pairs(0.03, 0.001), "fail"),
        (pairs(0.5, 0.6), "pass"),
        (pairs(0.5, None), "fail"),
        (pairs(0.5, 0.497, count=4), "inconclusive"),
        ([], "inconclusive"),
        (pairs(0.012, 0.001), "inconclusive"),
        (pairs(0.012, 0.010), "pass"),
    ],
)
def test_a_first_token_that_came_before_the_client_saw_it_is_no_truth(
    found: list[Pair], wanted: str
) -> None:
    assert verdict(found) == wanted


def test_a_few_answers_that_the_client_was_late_to_read_are_no_fault_of_the_node() -> None:
    assert verdict([*pairs(0.5, 0.497, 5), *pairs(3.0, 0.497, 3)]) == "pass"


def test_a_slow_network_may_keep_what_it_takes() -> None:
    assert verdict(pairs(0.6, 0.4), trip=0.1) == "pass"
    assert verdict(pairs(0.6, 0.1), trip=0.1) == "fail"

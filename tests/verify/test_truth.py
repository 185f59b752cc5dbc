from __future__ import annotations

import pytest

from kvops.testing import serve
from kvops.verify.check import Finding
from kvops.verify.checks.truth import Pair, TruthParameters, judge
from kvops.verify.profile import Entry, Profile
from kvops.verify.runner import Terms
from tests.verify.gate import gate

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


@pytest.mark.parametrize(
    ("wanted", "budget", "requests"), [(0, 60.0, 24), (40, 60.0, 40), (400, 0.0, 8)]
)
def test_it_asks_on_until_there_are_enough_or_its_time_is_over(
    wanted: int, budget: float, requests: int
) -> None:
    """`wanted`: samples that a comparison asks for."""
    terms = Terms(still_open=lambda name, samples: len(samples.values) < wanted)
    entry = Entry(id="perf.ttft_truth", timeout=60, parameters={"budget": budget, "long_enough": 0})
    profile = Profile(schema_version=1, name="truth", checks=[entry])
    with serve() as node:
        report = gate(node, profile, terms=terms)
    (found,) = report.checks
    assert found.verdict == "pass", found
    assert found.n == requests

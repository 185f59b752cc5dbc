"""Goodput: all objectives at once, over all that were attempted."""

from __future__ import annotations

import msgspec
import pytest

from kvops.load.records import ErrorClass
from kvops.load.slo import Slo
from kvops.load.statistics import goodput, objectives, summarize
from tests.load.made import answer, lost, refused

SLO = Slo(ttft=1.0, tpot=0.05, e2e=5.0)


def test_what_was_shed_lowers_it() -> None:
    served = [answer("a", at) for at in range(8)]
    refusals = [lost("a", at, ErrorClass.HTTP_429) for at in range(2)]
    assert goodput(served, SLO).share == 1.0
    found = goodput([*served, *refusals], SLO)
    assert (found.attempted, found.good, found.share) == (10, 8, 0.8)


def test_every_objective_must_be_met_at_once() -> None:
    slow_start, slow_pace = answer("a", 0, ttft=1.5), answer("a", 1, itl=0.2)
    found = goodput([answer("a", 2), slow_start, slow_pace], SLO)
    assert found.good == 1
    assert found.per_second == pytest.approx(1 / (1 + 0.1 + 7 * 0.2))


def test_a_cut_off_request_was_not_attempted_to_its_end() -> None:
    cut = lost("a", 1, ErrorClass.CLIENT_CANCEL)
    assert goodput([answer("a", 0), cut], SLO).attempted == 1
    assert goodput([cut], SLO).share is None


def test_what_the_end_cut_off_when_it_was_too_late_already_counts_as_late() -> None:
    waiting = [
        msgspec.structs.replace(lost("a", at, ErrorClass.CLIENT_CANCEL), e2e=3.0) for at in range(9)
    ]
    records = [answer("a", 0), *waiting]
    found = objectives(records, SLO)
    assert (found["ttft"].over, found["ttft"].samples) == (9, 10), "no first token within 3 s"
    assert found["e2e"].over == 0, "5 s had not passed"
    assert (goodput(records, SLO).attempted, goodput(records, SLO).good) == (10, 1)


def test_an_answer_of_one_token_has_no_pace_to_miss() -> None:
    assert goodput([answer("a", 0, tokens=1)], SLO).good == 1


def test_an_open_loop_counts_from_the_wanted_send() -> None:
    late = answer("a", 10.0, t_intended=8.0)
    assert goodput([answer("a", 10.0)], SLO).good == 1
    assert goodput([late], SLO).good == 0
    assert objectives([late] * 90, SLO)["ttft"].over == 90


def test_objectives_say_what_may_be_claimed() -> None:
    good = [answer("a", at) for at in range(90)]
    assert {one.outcome for one in objectives(good, SLO).values()} == {"holds"}
    assert objectives(good[1:], SLO)["ttft"].outcome == "too few"
    failing = [*good, lost("a", 1, ErrorClass.HTTP_503)]
    found = objectives(failing, Slo(ttft=1.0, itl=0.05))
    assert (found["ttft"].over, found["itl"].over) == (1, 0)
    assert objectives(good, Slo()) == {}


def test_an_expected_refusal_is_no_good_answer_and_no_quick_one() -> None:
    records = [*(answer("a", at) for at in range(6)), *(refused("a", at) for at in range(6))]
    assert (goodput(records, SLO).attempted, goodput(records, SLO).good) == (12, 6)
    assert objectives(records, SLO)["e2e"].samples == 6
    total = summarize(records)
    assert (total.succeeded, total.e2e.samples) == (12, 6)
    assert total.e2e.p50 == answer("a", 0).e2e


def test_a_good_answer_without_a_first_token_is_over_what_counts_from_it() -> None:
    whole = [answer("a", at, ttft=None, tokens=8) for at in range(90)]
    found = objectives([answer("a", 99), *whole], SLO)
    assert (found["ttft"].over, found["ttft"].samples) == (90, 91)
    assert found["e2e"].outcome == "refuted"

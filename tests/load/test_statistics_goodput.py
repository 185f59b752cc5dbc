"""Goodput: all objectives at once, over all that were attempted."""

from __future__ import annotations

import msgspec
import pytest

from kvops.load.records import ErrorClass
from kvops.load.slo import Slo
from kvops.load.statistics import goodput, objectives, summarize
from kvops.load.statistics.percentiles import rank
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
    assert (found["ttft"].over, found["itl"].over) == (1, 1)
    assert objectives(good, Slo()) == {}


def test_gaps_count_once_a_request_however_many_they_are() -> None:
    slo = Slo(itl=0.3)
    few = objectives([answer("a", at, tokens=16) for at in range(6)], slo, 0.95)["itl"]
    assert (few.samples, few.needed, few.outcome) == (6, 59, "too few")
    one_slow = answer("a", 0, tokens=1, itl=0.0)
    for gaps, slow in ((20, 1), (20, 2), (5, 1), (100, 5), (100, 6)):
        itl = (0.5,) * slow + (0.01,) * (gaps - slow)
        record = msgspec.structs.replace(one_slow, itl=itl, completion_tokens=gaps + 1)
        found = objectives([answer("a", 1), record, answer("a", 2, tokens=1)], slo)["itl"]
        ordered = sorted(itl)
        assert found.samples == 2, "an answer of one token has no gap"
        assert found.over == (ordered[rank(gaps, 0.95)] > 0.3), (gaps, slow)
        assert goodput([record], slo).good == 1 - found.over, "the claim and goodput say the same"


def test_the_time_to_connect_is_part_of_what_a_user_waits() -> None:
    slow = answer("a", 0.0, connect=4.0)
    assert goodput([slow], SLO).good == 0
    found = objectives([slow] * 90, Slo(ttft=2.0, e2e=3.0))
    assert (found["ttft"].over, found["e2e"].over) == (90, 90)


def test_what_the_client_never_sent_says_nothing_of_the_node() -> None:
    unsent = lost("a", 1, ErrorClass.CLIENT_SATURATED)
    found = objectives([answer("a", 0), unsent], Slo(ttft=1.0, itl=0.05, tpot=0.05, e2e=5.0))
    assert {(one.over, one.samples) for one in found.values()} == {(0, 1)}


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

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kvops.load import malformed
from kvops.load.injection import expectations
from kvops.load.records import ClientSample, ErrorClass, RequestRecord
from kvops.load.reports import recovery
from kvops.load.reports.base import RunData
from kvops.verify.check import Finding, Outcome
from kvops.verify.checks.injected import judge_injection
from kvops.verify.checks.recovery import (
    RecoversParameters,
    is_back,
    with_baseline,
    without_promise,
)
from kvops.verify.checks.recovery import judge as judge_recovery
from kvops.verify.checks.stability import (
    AGAIN,
    DriftParameters,
    drifting,
    judge_steady,
    require_answers,
)
from kvops.verify.driven import excused
from tests.load.made import answer, lost, refused, run

P = DriftParameters()


def soak(
    slower: float, count: int = 200, ttft: float = 0.2, itl: float = 0.02
) -> list[RequestRecord]:
    """The last answer takes `slower` times as long as the first."""
    worn = [1 + (slower - 1) * at / count for at in range(count)]
    return [
        answer("request", float(at), ttft=ttft * worn[at], itl=itl * worn[at])
        for at in range(count)
    ]


@pytest.mark.parametrize(
    ("records", "names"),
    [
        (soak(1.0), []),
        (soak(1.3), []),
        (soak(3.0), ["first token", "time a token"]),
        (soak(0.3), []),
        (soak(3.0, ttft=0.002, itl=0.0002), []),
        (soak(3.0, count=5), []),
    ],
)
def test_only_a_sure_and_large_slowing_is_a_drift(
    records: list[RequestRecord], names: list[str]
) -> None:
    assert list(drifting(records, P, P.drift)) == names


def test_a_slowing_is_said_from_what_to_what() -> None:
    (said, _) = drifting(soak(3.0), P, P.drift).values()
    assert said.startswith("first token grew from 2"), said
    assert "to 5" in said


@pytest.mark.parametrize(
    ("slower", "says"),
    [(1.0, "from 200 ms to 200 ms (+0 %)"), (0.1, "not steady"), (1.2, "first token from 2")],
)
def test_a_pass_says_from_what_to_what_and_that_it_was_not_steady(slower: float, says: str) -> None:
    outcome = judge_steady(run("soak", soak(slower)), False, P)
    assert outcome.verdict == "pass"
    assert says in str(outcome.observed)
    assert ("not steady" in str(outcome.observed)) is (slower < 0.5)
    assert outcome.evidence["drift"]["first token"]["first_quarter_median"] == pytest.approx(
        0.2 * (1 + (slower - 1) / 8), rel=0.1
    )


def test_a_slowing_while_others_take_the_machine_is_open() -> None:
    busy = [
        ClientSample(
            at=float(at), users=4, in_flight=4, cpu=0.2, lag=0.0, machine=1.0, ours=0.1, node=0.3
        )
        for at in range(20)
    ]
    excused(run("soak", soak(3.0)), "slower", "load.soak")
    with pytest.raises(Finding) as caught:
        excused(run("soak", soak(3.0), client=busy), "slower", "load.soak")
    assert caught.value.outcome.verdict == "inconclusive"
    assert "other processes" in str(caught.value.outcome.observed)


def test_a_second_soak_confirms_with_less() -> None:
    assert not drifting(soak(1.3), P, P.drift)
    assert drifting(soak(1.3), P, AGAIN * P.drift)


@pytest.mark.parametrize(
    ("records", "wanted"),
    [
        ([*soak(1.0), lost("request", 9.0, ErrorClass.STREAM_TRUNCATED)], "fail"),
        ([], "inconclusive"),
        (
            [answer("request", 1.0, expected=False, error_class=ErrorClass.CLIENT_CANCEL)],
            "inconclusive",
        ),
    ],
)
def test_a_soak_asks_for_answers(records: list[RequestRecord], wanted: str) -> None:
    require_answers(run("soak", soak(1.0)), P)
    with pytest.raises(Finding) as caught:
        require_answers(run("soak", records), P)
    assert caught.value.outcome.verdict == wanted


def injections(scenario: str, *left_out: str, wrong: str = "") -> RunData:
    names = expectations() if scenario == "oversize_injection" else malformed.expectations()
    records = [
        lost(name, 1.0, ErrorClass.WRONG_STATUS) if name == wrong else answer(name, 1.0)
        for name in names
        if name not in left_out
    ]
    return run(scenario, records)


def injected(
    *left_out: str, wrong: str = "", restarts: tuple[int | None, int | None] = (2, 2)
) -> Outcome:
    runs = [
        injections(name, *left_out, wrong=wrong)
        for name in ("oversize_injection", "malformed_input")
    ]
    try:
        return judge_injection(runs, *restarts, ours=True)
    except Finding as finding:
        return finding.outcome


FIRST = next(iter(malformed.expectations()))


@pytest.mark.parametrize(
    ("given", "wanted", "says"),
    [
        ({}, "pass", "answered rightly"),
        ({"restarts": (None, None)}, "pass", "answered rightly"),
        ({"restarts": (2, 3)}, "fail", "restarts went from 2 to 3"),
        ({"wrong": FIRST}, "fail", f"{FIRST}: wrong_status"),
        ({"wrong": "2x limit"}, "fail", "2x limit: wrong_status"),
    ],
)
def test_every_injection_has_its_right_answer(
    given: dict[str, Any], wanted: str, says: str
) -> None:
    outcome = injected(**given)
    assert (outcome.verdict, says in str(outcome.observed)) == (wanted, True)


def test_prompts_of_the_whole_limit_may_be_left_out_and_nothing_else() -> None:
    outcome = injected("limit-1", "limit")
    assert outcome.verdict == "pass"
    assert "not computed" in str(outcome.observed)
    assert injected("limit+1").verdict == "inconclusive"
    assert injected(FIRST).verdict == "inconclusive"


R = RecoversParameters()
OPTIONS = {
    "recover_within": R.within, "tolerance": R.tolerance, "min_throughput": R.throughput,
    "burst_seconds": R.burst,
}  # fmt: skip


def burst(after: float, before: float = 0.2, overload: bool = True) -> RunData:
    """First tokens of `before` seconds in the baseline and of `after` seconds once the burst is over."""
    records = [answer(recovery.BASELINE, at * (before + 0.2), ttft=before) for at in range(10)]
    records += [answer(recovery.BURST, 10.0, ttft=3.0 if overload else before) for _ in range(10)]
    records += [refused(recovery.BURST, 10.0)] if overload else []
    records += [answer(recovery.RECOVERY, 12 + at * (after + 0.2), ttft=after) for at in range(24)]
    return run("burst_and_recover", records, **OPTIONS)


def judged(data: RunData) -> Outcome:
    try:
        return judge_recovery(data, R)
    except Finding as finding:
        return finding.outcome


def recovered(data: RunData) -> str:
    return judged(data).verdict


def test_what_is_said_of_recovery_stands_in_the_evidence() -> None:
    outcome = judged(burst(0.3))
    after = next(one for one in outcome.evidence["phases"] if one["name"] == recovery.SETTLED)
    assert f"{after['per_second']:.2f} from then on" in str(outcome.observed)
    assert f"n 10 and {after['answered']}" in str(outcome.observed)


def test_an_open_recovery_names_the_line_to_write() -> None:
    outcome = judged(burst(0.2, overload=False))
    assert "{id: load.recovers, parameters: {users: " in outcome.remedy
    assert "--" not in str(outcome.observed)


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (burst(0.2), "pass"),
        (burst(0.3), "pass"),
        (burst(2.0), "fail"),
        (burst(0.2, overload=False), "inconclusive"),
        (run("burst_and_recover", [], **OPTIONS), "inconclusive"),
    ],
)
def test_a_node_comes_back_after_a_burst_or_not(data: RunData, wanted: str) -> None:
    assert recovered(data) == wanted


def test_a_node_that_stays_slow_is_not_its_own_measure() -> None:
    slow = burst(2.0, before=2.0)
    assert recovered(slow) == "pass"
    assert recovered(with_baseline(slow, burst(0.2).records[:10])) == "fail"


def test_a_refusal_without_retry_after_breaks_the_word_of_ours_alone() -> None:
    bare = {"status": 503, "expected": False, "error_class": ErrorClass.WRONG_STATUS, "ttft": None}
    data = burst(0.2, overload=False)
    whole = msgspec.structs.replace(
        data, records=[*data.records, answer(recovery.BURST, 10.5, **bare)]
    )
    assert recovered(whole) == "fail"
    assert recovered(without_promise(whole)) == "pass"
    broken = msgspec.structs.replace(
        data, records=[*data.records, answer(recovery.BURST, 10.5, **(bare | {"status": 500}))]
    )
    assert recovered(without_promise(broken)) == "fail"


def test_a_run_may_end_when_the_last_answers_are_as_before() -> None:
    assert is_back(burst(0.2).records, R)
    assert not is_back(burst(2.0).records, R)
    assert not is_back(burst(0.2).records[:25], R)
    assert not is_back([], R)

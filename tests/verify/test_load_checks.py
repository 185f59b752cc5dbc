from __future__ import annotations

from typing import Any

import pytest

from kvops.load.records import ErrorClass, RequestRecord, ServerSample
from kvops.load.reports.base import RunData
from kvops.verify.check import Finding, Outcome
from kvops.verify.checks import kv_cache, ledger, load
from kvops.verify.checks.load import ConcurrencyParameters, claims_of
from kvops.verify.planned import (
    Counters,
    Planned,
    Pressure,
    TokenCounts,
    pressed,
    ramp,
    speed_up,
    tokens_told,
)
from tests.load.made import answer, lost, refused, run

P = ConcurrencyParameters()


def step(users: int, records: list[RequestRecord], **more: Any) -> RunData:
    data = run("batch_offline", records, **more)
    data.info.users = users
    return data


def answers(count: int, ttft: float = 0.1, every: float = 0.2) -> list[RequestRecord]:
    return [answer("request", at * every, ttft=ttft) for at in range(count)]


def planned(
    *steps: RunData,
    gained: float | None = 2.0,
    before: TokenCounts | None = None,
    after: TokenCounts | None = None,
) -> Planned:
    return Planned(8, steps, gained, (), (Counters(before), Counters(after)), None)


def concurrency(records: list[RequestRecord], gained: float | None = 2.0) -> Outcome:
    whole = planned(step(1, answers(12)), step(8, records), gained=gained)
    try:
        load.require_answers(whole, P)
        load.require_gain(whole, P)
        load.require_flow(whole, P)
        return load.judge(whole, records, claims_of(records, P), P)
    except Finding as finding:
        return finding.outcome


@pytest.mark.parametrize(
    ("records", "gained", "wanted", "says"),
    [
        (answers(100), 2.0, "pass", "p95 TTFT 100 ms"),
        (answers(100), None, "pass", "no failure"),
        (answers(100), 1.2, "fail", "for 8 users the node does 1.20 ×"),
        (answers(100, ttft=11.0), 2.0, "fail", "TTFT p95 within 10.00 s: refuted"),
        (answers(80), 2.0, "inconclusive", "needs 90 samples"),
        ([*answers(99), lost("request", 50.0, ErrorClass.HTTP_503)], 2.0, "fail", "1 of 112"),
        ([*answers(99), refused("request", 50.0)], 2.0, "fail", "HTTP 429"),
    ],
)
def test_the_planned_load_is_carried_or_not(
    records: list[RequestRecord], gained: float | None, wanted: str, says: str
) -> None:
    outcome = concurrency(records, gained)
    assert outcome.verdict == wanted, outcome.observed
    assert says in str(outcome.observed)


def queue(waiting: int, running: int, count: int = 6) -> list[ServerSample]:
    return [ServerSample(at=float(at), waiting=waiting, running=running) for at in range(count)]


@pytest.mark.parametrize(
    ("server", "stands"),
    [
        (queue(1, 7), True),
        (queue(6, 2), False),
        (queue(6, 2, count=3), True),
        ([*queue(6, 2, count=2), *queue(0, 8)], True),
        ([], True),
    ],
)
def test_a_queue_that_stays_is_not_in_the_plan(server: list[ServerSample], stands: bool) -> None:
    whole = planned(step(8, answers(100), server=server))
    if stands:
        return load.require_flow(whole, P)
    with pytest.raises(Finding, match="6 of 8 requests in the node wait"):
        load.require_flow(whole, P)
    return None


def test_a_request_that_was_sent_late_has_waited_since_it_was_due() -> None:
    assert load.waited(answer("request", 10.0, ttft=0.5)) == 0.5
    assert load.waited(answer("request", 10.0, ttft=0.5, t_intended=7.0)) == pytest.approx(3.5)
    assert load.waited(lost("request", 1.0, ErrorClass.HTTP_503)) == float("inf")
    assert load.waited(answer("request", 10.0, ttft=0.5, connect=2.0)) == 2.5


def test_gaps_are_claimed_by_requests_and_a_failed_one_is_over() -> None:
    few = claims_of(answers(12), P)["ITL"]
    assert (few.outcome, few.samples) == ("too few", 12), "however many gaps they have"
    some = [*answers(90), lost("request", 99.0, ErrorClass.HTTP_503)]
    assert (claims_of(some, P)["ITL"].over, claims_of(some, P)["ITL"].samples) == (1, 91)


def test_a_slow_request_asks_for_more_samples_before_a_claim_is_believed() -> None:
    slow = [*answers(99), answer("request", 60.0, ttft=11.0)]
    assert claims_of(slow, P)["TTFT"].outcome == "too few"
    assert claims_of([*slow, *answers(40)], P)["TTFT"].outcome == "holds"


def test_the_series_of_a_later_comparison_know_what_was_lost() -> None:
    series = load.samples_of([*answers(5), lost("request", 9.0, ErrorClass.HTTP_503)])
    assert (series["ttft.load"].lost, series["ttft.load"].total) == (1, 6)
    assert (series["itl.load"].lost, series["itl.load"].total) == (1, 6)


@pytest.mark.parametrize(("slower", "gain"), [(1.0, 4.0), (2.0, 2.0), (4.0, 1.0)])
def test_what_several_users_get_together_is_set_against_one_alone(
    slower: float, gain: float
) -> None:
    alone = [answer("request", float(at), ttft=0.1, itl=0.1) for at in range(9)]
    beside = [answer("request", float(at), ttft=0.1 * slower, itl=0.1 * slower) for at in range(9)]
    found = speed_up(step(1, alone), step(4, [*beside, lost("request", 1.0, ErrorClass.HTTP_503)]))
    assert found == pytest.approx(gain)
    assert speed_up(step(1, alone), step(4, [])) == 0.0


@pytest.mark.parametrize(("users", "steps"), [(1, [1]), (2, [1, 2]), (8, [1, 4, 8])])
def test_the_load_grows_to_all_users(users: int, steps: list[int]) -> None:
    assert list(ramp(users)) == steps


def counts(told: TokenCounts, prompt: float = 0, generated: float = 0) -> TokenCounts:
    return TokenCounts(told.prompt + prompt, told.generated + generated)


@pytest.mark.parametrize(
    ("prompt", "generated", "wanted"),
    [(0, 0, "pass"), (-1, 0, "fail"), (0, -1, "fail"), (0, 1, "fail"), (-800, -80, "fail")],
)
def test_client_and_node_count_alike_to_the_token(prompt: int, generated: int, wanted: str) -> None:
    whole = planned(step(8, answers(10)))
    told = tokens_told(whole.records)
    try:
        outcome = ledger.judge(whole, told, {"/metrics": counts(told, prompt, generated)})
    except Finding as finding:
        outcome = finding.outcome
    assert outcome.verdict == wanted


def test_tokens_of_requests_that_were_cut_off_are_known_to_the_node_alone() -> None:
    cut = answer(
        "request", 3.0, expected=False, error_class=ErrorClass.CLIENT_CANCEL,
        prompt_tokens=None, completion_tokens=None,
    )  # fmt: skip
    whole = planned(step(8, [*answers(10), cut]))
    told = tokens_told(whole.records)
    with pytest.raises(Finding) as caught:
        ledger.judge(whole, told, {"/metrics": counts(told, 100, 4)})
    assert caught.value.outcome.verdict == "inconclusive"
    with pytest.raises(Finding) as caught:
        ledger.judge(whole, told, {"/metrics": counts(told, -1, 0)})
    assert caught.value.outcome.verdict == "fail"


def test_counters_of_metrics_are_those_between_before_and_after() -> None:
    whole = planned(step(8, answers(2)), before=TokenCounts(5, 5), after=TokenCounts(205, 21))
    assert ledger.counted(whole) == {"/metrics": TokenCounts(200, 16)}
    assert ledger.counted(planned(step(8, answers(2)))) == {}


def sample(used: int, cached: int) -> ServerSample:
    return ServerSample(at=1.0, kv_total=100, kv_used=used, kv_cached=cached)


def test_room_is_what_is_neither_held_nor_cached() -> None:
    assert kv_cache.least_free([sample(10, 20), sample(30, 60)], None) == pytest.approx(0.1)
    assert kv_cache.least_free([ServerSample(at=1.0)], None) is None


@pytest.mark.parametrize(
    ("preempted", "evicted", "spare", "wanted"),
    [
        (0, 0, 0.9, "pass"),
        (0, 500, 0.0, "pass"),
        (0, 500, None, "pass"),
        (0, None, 0.9, "pass"),
        (0, 1, 0.9, "fail"),
        (6, 0, 0.0, "fail"),
        (5, 0, 0.0, "pass"),
    ],
)
def test_evictions_without_need_and_frequent_preemptions_fail(
    preempted: int, evicted: int | None, spare: float | None, wanted: str
) -> None:
    whole = planned(step(8, answers(100)))
    try:
        outcome = kv_cache.judge(
            whole, Pressure(preempted, evicted), spare, kv_cache.EvictionParameters()
        )
    except Finding as finding:
        outcome = finding.outcome
    assert outcome.verdict == wanted


def test_what_is_not_counted_is_not_zero() -> None:
    before, after = Counters(None, Pressure(3, None)), Counters(None, Pressure(5, None))
    assert pressed(before, after) == Pressure(2, None)
    assert pressed(Counters(), after) == Pressure(None, None)

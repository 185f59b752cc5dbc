"""The search for the knee against nodes whose true knee is known, and what one step is judged to be."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvops.load.knee import MAX_STEPS, Outcome, Search, contradictions, first_bad, knee, unsteady
from kvops.load.knee_step import (
    Aims,
    Limit,
    Pressure,
    claims_of,
    decide,
    measure,
    pressure,
    settled,
)
from kvops.load.records import ErrorClass, RequestRecord, ServerSample
from kvops.load.slo import Slo
from kvops.load.statistics import sequential


def climb(search: Search, node: Callable[[float], Outcome]) -> list[float]:
    loads = []
    while (load := search.next()) is not None:
        loads.append(load)
        search.take(load, node(load))
    return loads


def users(most: float = 64, start: float = 1) -> Search:
    return Search(start, most, 0.01, whole=True)


def up_to(limit: float) -> Callable[[float], Outcome]:
    return lambda load: "good" if load <= limit else "bad"


@given(st.integers(1, 63))
def test_the_knee_of_an_honest_node_is_found_to_the_user(limit: int) -> None:
    search = users()
    loads = climb(search, up_to(limit))
    assert knee(search.tried) == limit
    assert first_bad(search.tried) == limit + 1
    assert contradictions(search.tried) == []
    assert len(loads) <= 16


@given(st.floats(0.5, 30), st.sampled_from([0.05, 0.1, 0.3]))
def test_a_rate_is_found_within_the_resolution(limit: float, resolution: float) -> None:
    search = Search(0.25, 64, resolution, whole=False)
    climb(search, up_to(limit))
    low, high = knee(search.tried), first_bad(search.tried)
    assert low is not None
    assert high is not None
    assert low <= limit < high
    assert high - low <= resolution * high


def test_steps_double_then_halve_the_gap_and_the_knee_is_measured_again() -> None:
    assert climb(users(), up_to(5)) == [1, 2, 4, 8, 8, 6, 5, 5]


def test_a_node_that_bears_the_most_is_asked_no_more() -> None:
    search = users(most=12)
    assert climb(search, up_to(100)) == [1, 2, 4, 8, 12, 12]
    assert (knee(search.tried), first_bad(search.tried)) == (12, None)


def test_a_node_that_bears_nothing_has_no_knee() -> None:
    search = users()
    assert climb(search, up_to(0)) == [1, 1]
    assert (knee(search.tried), first_bad(search.tried)) == (None, 1)


def test_a_start_that_is_too_high_goes_down() -> None:
    assert climb(users(start=16), up_to(3)) == [16, 16, 8, 4, 2, 3, 3]
    search = Search(1.0, 8, 0.1, whole=False)
    assert climb(search, up_to(0)) == [1.0, 1.0, 0.5, 0.25, 0.125, 0.0625]
    assert knee(search.tried) is None


def test_an_unclear_step_ends_the_search() -> None:
    assert climb(users(), lambda load: "unclear" if load == 4 else "good") == [1, 2, 4]


def test_where_two_measurements_disagree_a_third_decides() -> None:
    seen: list[float] = []

    def node(load: float) -> Outcome:
        seen.append(load)
        return "bad" if load == 4 and seen.count(4) == 1 else up_to(10)(load)

    search = users()
    assert climb(search, node)[:6] == [1, 2, 4, 4, 4, 8]
    assert knee(search.tried) == 10
    assert unsteady(search.tried) == [4]
    assert contradictions(search.tried) == []


def test_a_knee_that_fails_when_measured_again_goes_down() -> None:
    seen: list[float] = []

    def node(load: float) -> Outcome:
        seen.append(load)
        return "bad" if load == 5 and seen.count(5) > 1 else up_to(5)(load)

    search = users()
    climb(search, node)
    assert knee(search.tried) == 4
    assert unsteady(search.tried) == [5]


def test_a_node_that_bears_more_where_it_did_not_bear_less_is_contradictory() -> None:
    search = users()
    for load, outcome in ((8, "good"), (16, "bad"), (16, "bad"), (4, "bad")):
        search.take(load, outcome)  # type: ignore[arg-type]
    assert contradictions(search.tried) == [(4, 8)]
    assert (knee(search.tried), first_bad(search.tried)) == (None, 4)


@given(st.lists(st.sampled_from(["good", "bad"]), min_size=80, max_size=80))
def test_any_node_is_done_within_the_bound_and_its_knee_is_under_every_bad_load(
    answers: list[Outcome],
) -> None:
    search = users()
    loads = climb(search, lambda _: answers.pop())
    assert len(loads) <= MAX_STEPS
    found, bad = knee(search.tried), first_bad(search.tried)
    assert found is None or bad is None or found < bad


def test_options_make_the_search() -> None:
    options = {"by": "users", "start": 2.4, "most": 8.0, "resolution": 0.1}
    assert climb(Search.of(options), up_to(100)) == [2, 4, 8, 8]
    assert climb(Search.of(options | {"by": "rate"}), up_to(100)) == [2.4, 4.8, 8, 8]


AIMS = Aims(Slo(ttft=1.0, confidence=0.8), max_errors=0.01)


def record(seq: int, ttft: float | None = 0.5, error: ErrorClass | None = None) -> RequestRecord:
    return RequestRecord(
        run="r", scenario="ramp_to_knee", name="8 users", seq=seq, user=0, t_send=float(seq), ttft=ttft, e2e=2.0,
        status=200 if error is None else None, error_class=error, expected=error is None, completion_tokens=8,
        group="1",
    )  # fmt: skip


def answers(fast: int, slow: int = 0, **errors: int) -> list[RequestRecord]:
    """In no order."""
    kinds: list[tuple[float | None, ErrorClass | None]] = [(0.5, None)] * fast + [
        (3.0, None)
    ] * slow
    kinds += [(None, ErrorClass(name)) for name, count in errors.items() for _ in range(count)]
    random.Random(2).shuffle(kinds)
    return [record(seq, *kind) for seq, kind in enumerate(kinds)]


@pytest.mark.parametrize(
    ("records", "outcome"),
    [
        (answers(40), "good"),
        (answers(5), "open"),
        (answers(0), "open"),
        (answers(30, 10), "bad"),
        (answers(0, 5), "bad"),
        (answers(0, 20), "bad"),
        (answers(38, 2), "open"),
        (answers(40, http_429=10), "bad"),
        (answers(0, connect_refused=5), "bad"),
    ],
)
def test_a_step_is_judged_as_soon_as_it_can_be(records: list[RequestRecord], outcome: str) -> None:
    assert decide(records, AIMS, at_end=False) == outcome


@pytest.mark.parametrize(
    ("records", "outcome"),
    [
        (answers(40), "good"),
        (answers(5), "unclear"),
        (answers(0), "unclear"),
        (answers(38, 2), "bad"),
        (answers(18, 3), "bad"),
        (answers(20, 1), "unclear"),
        (answers(39, client_cancel=3), "bad"),
    ],
)
def test_at_its_end_what_was_not_shown_to_be_good_is_bad_or_unclear(
    records: list[RequestRecord], outcome: str
) -> None:
    assert decide(records, AIMS, at_end=True) == outcome


def test_what_a_step_showed_first_has_the_say_whatever_comes_after() -> None:
    assert decide(answers(36), AIMS, at_end=False) == "good"
    assert decide([record(99, 9.0), *answers(36)], AIMS, at_end=True) == "good"
    assert decide([record(-1, 9.0), *answers(36)], AIMS, at_end=True) == "bad"


def test_the_first_look_is_at_all_that_was_sent_in_the_first_seconds() -> None:
    """The first of a step come all at once, and are no picture of it."""
    crowd = [record(at, 3.0 if at < 4 else 0.5) for at in range(90)]
    assert decide(crowd, AIMS, at_end=False) == "bad"
    patient = Aims(AIMS.slo, AIMS.max_errors, seconds=200.0)
    assert decide(crowd, patient, at_end=False) == "open"
    assert claims_of(crowd, patient)["ttft"].over == 4


def test_a_step_is_not_judged_by_those_that_were_quick_alone() -> None:
    aims = Aims(AIMS.slo, AIMS.max_errors, seconds=10.0)
    assert settled(answers(40), [], aims) == answers(40)
    assert settled(answers(40), [9.5], aims) == [], "one of the first seconds is under way still"
    assert len(settled(answers(40), [30.5, 12.5], aims)) == 13
    assert settled([], [1.0], aims) == []


@pytest.mark.parametrize(("share", "confidence"), [(0.95, 0.8), (0.99, 0.95), (0.8, 0.8)])
def test_looking_again_and_again_is_wrong_no_more_often_than_it_says(
    share: float, confidence: float
) -> None:
    runs, length, may = 4000, 1500, 1 - confidence
    chance = np.random.default_rng(7)

    def outcomes(over: float) -> dict[str, float]:
        drawn = (chance.random((runs, length)) < over).astype(np.int8)
        found = Counter(sequential(row, share, 1.0, confidence, 20).outcome for row in drawn)
        return {name: count / runs for name, count in found.items()}

    at_bound, noise = outcomes(1 - share), 3 * math.sqrt(may / runs)
    assert 0.5 * may < at_bound["holds"] <= may + noise, "at the bound it may hold so often"
    assert 0.3 * may < at_bound["refuted"] <= may + noise
    assert outcomes(2 * (1 - share)).get("holds", 0.0) < may / 4
    assert outcomes((1 - share) / 10)["holds"] > 0.98, "and what is far from it is soon seen"


def test_a_load_without_a_slow_answer_is_good_soon() -> None:
    found = sequential(np.zeros(400, np.int8), 0.95, 2.0, 0.8, 20)
    told = "shown with 80% confidence (0 of 36 over it)"
    assert (found.outcome, found.samples, str(found)) == ("holds", 36, told)
    assert sequential(np.zeros(35, np.int8), 0.95, 2.0, 0.8, 20).needed == 36
    assert sequential(np.ones(20, np.int8), 0.95, 2.0, 0.8, 20).outcome == "refuted"
    assert sequential(np.zeros(0, np.int8), 0.95, 2.0, 0.8, 20).outcome == "too few"


@pytest.mark.parametrize(
    ("records", "seen", "limits"),
    [
        (answers(40), Pressure(), ()),
        (answers(20, 20), Pressure(), (Limit.TTFT,)),
        (answers(38, 2), Pressure(waiting=3), (Limit.TTFT,)),
        (answers(20, 20), Pressure(kv_usage=0.99), (Limit.KV, Limit.TTFT)),
        (answers(20, 20), Pressure(preemptions=4), (Limit.KV, Limit.TTFT)),
        (answers(40, http_429_queue_full=30), Pressure(), (Limit.QUEUE, Limit.TTFT)),
        (answers(40, http_503_queue_timeout=30), Pressure(), (Limit.QUEUE, Limit.TTFT)),
        (answers(40, http_5xx_other=30), Pressure(), (Limit.ERRORS, Limit.TTFT)),
    ],
)
def test_a_bad_step_says_its_limits_the_deepest_first(
    records: list[RequestRecord], seen: Pressure, limits: tuple[Limit, ...]
) -> None:
    assert measure(8, records, AIMS, seen).limits == limits


def test_pressure_is_what_the_samples_of_the_step_show() -> None:
    samples = [
        ServerSample(at=at, kv_usage=usage, preemptions=preempted, waiting=waiting, running=2)
        for at, usage, preempted, waiting in [
            (1.0, 0.9, 3, 9),
            (2.0, 0.5, 4, 0),
            (3.0, 0.7, 6, 2),
            (9.0, 1.0, 9, 5),
        ]
    ]
    found = pressure(samples, 1.5, 4.0)
    assert (found.kv_usage, found.preemptions, found.waiting, found.running) == (0.7, 2, 2, 2)
    assert pressure([], 0, 9) == Pressure()
    assert pressure([ServerSample(at=1.0)], 0, 9) == Pressure()

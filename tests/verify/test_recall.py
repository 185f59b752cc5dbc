from __future__ import annotations

import random
from collections import Counter

import pytest

from kvops.load.needle import plan
from kvops.load.records import ErrorClass, NeedleScore, RequestRecord
from kvops.load.reports.base import RunData
from kvops.verify.check import Finding
from kvops.verify.checks.recall import (
    MOST,
    GridParameters,
    affordable,
    fitting,
    judge,
    require_answers,
)
from kvops.verify.checks.recall_load import Pair, UnderLoadParameters
from kvops.verify.checks.recall_load import judge as judge_pairs
from kvops.verify.checks.recall_scores import scores, unsettled
from tests.load.made import answer, lost, run

LENGTHS, DEPTHS = [256, 1024], [0.0, 50.0, 100.0]


def asked(length: int, depth: float, found: bool, number: int) -> RequestRecord:
    score = NeedleScore(
        found=found, length=length, depth=depth, counted_tokens=length, exact=True, repeat=0
    )
    more = {} if found else {"expected": False, "error_class": ErrorClass.WRONG_ANSWER}
    return answer(f"needle {length}", float(number), needle=score, **more)


def grid(*missed: tuple[int, float, int], repeats: int = 3) -> list[RequestRecord]:
    """All found but of each (length, depth) so many."""
    wrong = {(length, depth): count for length, depth, count in missed}
    return [
        asked(length, depth, repeat >= wrong.get((length, depth), 0), repeat)
        for length in LENGTHS
        for depth in DEPTHS
        for repeat in range(repeats)
    ]


def data(records: list[RequestRecord]) -> list[RunData]:
    return [run("needle_recall", records, lengths=LENGTHS, depths=DEPTHS, repeats=3)]


def verdict(records: list[RequestRecord]) -> tuple[str, str]:
    try:
        outcome = judge(scores(records), GridParameters(), data(records))
    except Finding as finding:
        outcome = finding.outcome
    return outcome.verdict, str(outcome.observed)


@pytest.mark.parametrize(
    ("missed", "wanted", "says"),
    [
        ((), "pass", "9/9 at 256, 9/9 at 1 024: at least 70 % at each"),
        (((1024, 0.0, 1),), "inconclusive", "8/9 at 1 024 tokens, 9/9 at 256: too few"),
        (((1024, 50.0, 3),), "inconclusive", "0/3 at 50 % depth"),
        (tuple((1024, d, 2) for d in DEPTHS), "fail", "3/9 at 1 024"),
        (tuple((1024, d, 3) for d in DEPTHS), "fail", "0/9 at 1 024"),
        (((1024, 0.0, 1), (1024, 50.0, 1)), "inconclusive", "too few to tell from chance"),
        (tuple((256, d, 2) for d in DEPTHS), "inconclusive", "this model cannot recall"),
    ],
)
def test_each_length_is_measured_by_the_shortest(
    missed: tuple[tuple[int, float, int], ...], wanted: str, says: str
) -> None:
    found, observed = verdict(grid(*missed))
    assert found == wanted, observed
    assert says in observed


@pytest.mark.parametrize(
    ("missed", "repeats", "wanted", "says"),
    [
        (((1024, 0.0, 1),), 6, "pass", "17/18 at 1 024"),
        (((256, 0.0, 1), (1024, 0.0, 1)), 6, "pass", "17/18 at 256"),
        (((1024, 50.0, 6),), 6, "fail", "0/6 at 50 % depth"),
        (tuple((1024, d, 14) for d in DEPTHS), 50, "fail", "108/150 at 1 024"),
        (tuple((length, d, 10) for length in LENGTHS for d in DEPTHS), 50, "pass", "120/150"),
    ],
)
def test_more_answers_tell_what_few_left_open(
    missed: tuple[tuple[int, float, int], ...], repeats: int, wanted: str, says: str
) -> None:
    found, observed = verdict(grid(*missed, repeats=repeats))
    assert found == wanted, observed
    assert says in observed


def test_one_length_alone_is_no_comparison() -> None:
    alone = [one for one in grid() if one.needle and one.needle.length == 256]
    assert verdict(alone) == (
        "inconclusive",
        "answers of 1 lengths: no longer one to measure by the shortest",
    )
    assert verdict([])[0] == "inconclusive"


@pytest.mark.parametrize(
    ("missed", "more"),
    [
        ((), []),
        (((1024, 0.0, 1),), [1024]),
        (tuple((1024, d, 3) for d in DEPTHS), []),
        (tuple((256, d, 3) for d in DEPTHS), []),
    ],
)
def test_more_is_asked_of_what_is_open_alone(
    missed: tuple[tuple[int, float, int], ...], more: list[int]
) -> None:
    p = GridParameters()
    assert unsettled(scores(grid(*missed)), p.share, p.reference) == more


@pytest.mark.parametrize(
    ("left", "repeats"), [(100.0, 3), (24.0, 2), (5.0, 0), (-1.0, 0), (1e9, 3)]
)
def test_as_much_more_is_asked_as_there_is_time_for(left: float, repeats: int) -> None:
    runs = data(grid())
    runs[0].info.started_at, runs[0].info.finished_at = 100.0, 130.0
    assert affordable(runs, [1024], left, GridParameters()) == repeats


def test_there_is_an_end_to_asking() -> None:
    runs = data(grid()) * MOST
    assert affordable(runs, [1024], 1e9, GridParameters()) == 0
    assert affordable(runs[1:], [1024], 1e9, GridParameters()) == 3


def simulated(source: random.Random, shares: dict[tuple[int, float], float]) -> str:
    """The verdict of a grid whose numbers are found with these probabilities, by the check's own judge."""
    records: list[RequestRecord] = []
    p, lengths, repeats = GridParameters(), sorted({length for length, _ in shares}), 3
    asked, open_ = 0, lengths[1:]
    while open_ and asked < MOST * repeats:
        more = min(asked or repeats, MOST * repeats - asked)
        records += [
            asked_with(source, length, depth, share, asked + at)
            for (length, depth), share in shares.items()
            if length == lengths[0] or length in open_
            for at in range(more)
        ]
        asked += more
        open_ = unsettled(scores(records), p.share, p.reference)
    return verdict(records)[0]


def asked_with(
    source: random.Random, length: int, depth: float, share: float, number: int
) -> RequestRecord:
    return asked(length, depth, source.random() < share, number)


def flat(*by_length: float) -> dict[tuple[int, float], float]:
    return {
        (length, depth): share
        for length, share in zip([256, 1024, 2048], by_length, strict=True)
        for depth in DEPTHS
    }


LOST_DEPTH = flat(0.9, 0.9, 0.9) | {(2048, 50.0): 0.0}


@pytest.mark.parametrize(
    ("shares", "wanted", "at_least"),
    [
        (flat(1.0, 1.0, 1.0), "pass", 1.0),
        (flat(0.95, 0.95, 0.95), "pass", 0.98),
        (flat(0.8, 0.8, 0.8), "pass", 0.93),
        (flat(1.0, 1.0, 0.65), "fail", 0.85),
        (flat(0.9, 0.9, 0.45), "fail", 0.95),
        (LOST_DEPTH, "fail", 0.99),
        (flat(0.5, 0.5, 0.5), "inconclusive", 0.95),
    ],
)
def test_a_sound_node_passes_and_one_that_forgets_does_not(
    shares: dict[tuple[int, float], float], wanted: str, at_least: float
) -> None:
    source, times = random.Random(7), 120
    verdicts = Counter(simulated(source, shares) for _ in range(times))
    assert verdicts[wanted] >= at_least * times, verdicts
    wrong = {"pass": "fail", "fail": "pass", "inconclusive": "pass"}[wanted]
    assert verdicts[wrong] <= 0.04 * times, verdicts


def controls() -> list[RequestRecord]:
    return [
        answer(
            cell.name,
            99.0,
            needle=NeedleScore(
                found=False, length=cell.length, depth=None, counted_tokens=9, exact=True
            ),
        )
        for cell in plan(0, LENGTHS, DEPTHS, 3)
        if cell.depth is None
    ]


def test_a_prompt_that_was_not_answered_is_no_wrong_answer() -> None:
    require_answers(data(grid() + controls()))
    broken = [*grid()[1:], *controls(), lost("needle", 1.0, ErrorClass.STREAM_TRUNCATED)]
    with pytest.raises(Finding) as caught:
        require_answers(data(broken))
    assert caught.value.outcome.verdict == "fail"
    assert "stream_truncated" in str(caught.value.outcome.observed)


@pytest.mark.parametrize(
    ("status", "error", "wanted"),
    [
        (429, ErrorClass.HTTP_429, "inconclusive"),
        (429, ErrorClass.HTTP_429_QUEUE_FULL, "inconclusive"),
        (429, ErrorClass.HTTP_429_TENANT_LIMIT, "inconclusive"),
        (429, ErrorClass.HTTP_429_KV_QUOTA, "inconclusive"),
        (503, ErrorClass.HTTP_503, "inconclusive"),
        (503, ErrorClass.HTTP_503_QUEUE_TIMEOUT, "inconclusive"),
        (503, ErrorClass.HTTP_503_DRAINING, "inconclusive"),
        (503, ErrorClass.HTTP_503_NOT_READY, "inconclusive"),
        (503, ErrorClass.HTTP_503_ENGINE_RESTARTED, "fail"),
        (500, ErrorClass.HTTP_5XX_OTHER, "fail"),
    ],
)
def test_a_busy_node_leaves_the_grid_open_and_a_broken_one_does_not(
    status: int, error: ErrorClass, wanted: str
) -> None:
    refused = answer("needle", 1.0, ttft=None, status=status, expected=False, error_class=error)
    with pytest.raises(Finding) as caught:
        require_answers(data([*grid()[1:], *controls(), refused]))
    assert caught.value.outcome.verdict == wanted
    assert str(error) in str(caught.value.outcome.observed)


def test_a_grid_that_was_not_asked_to_the_end_is_open() -> None:
    with pytest.raises(Finding) as caught:
        require_answers(data([*grid()[1:], *controls()]))
    assert caught.value.outcome.verdict == "inconclusive"


def test_lengths_over_the_limit_become_the_limit() -> None:
    assert fitting([256, 1024, 9000], 8192) == [256, 1024, 8160]
    assert fitting([256, 1024], None) == [256, 1024]
    assert fitting([4000, 9000], 512) == [480]


def pair(idle: str, loaded: str) -> Pair:
    return Pair("needle", idle, loaded, "7654321")


KNOWN, OTHER, LOST = "It is 7654321.", "The number is 7654321.", "I do not know."


@pytest.mark.parametrize(
    ("pairs", "exact", "wanted"),
    [
        ([pair(KNOWN, KNOWN)], True, "pass"),
        ([pair(KNOWN, OTHER)], True, "fail"),
        ([pair(KNOWN, OTHER)], False, "warn"),
        ([pair(KNOWN, LOST)], False, "fail"),
        ([pair(LOST, LOST)], True, "inconclusive"),
        ([pair(LOST, LOST), pair(KNOWN, KNOWN)], True, "pass"),
        ([pair(LOST, KNOWN), pair(KNOWN, KNOWN)], True, "fail"),
    ],
)
def test_answers_beside_a_load_are_those_without_it(
    pairs: list[Pair], exact: bool, wanted: str
) -> None:
    try:
        outcome = judge_pairs(pairs, exact, UnderLoadParameters())
    except Finding as finding:
        outcome = finding.outcome
    assert outcome.verdict == wanted
    assert "7654321" not in str(outcome.evidence)

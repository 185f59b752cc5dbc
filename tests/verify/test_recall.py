from __future__ import annotations

import pytest

from kvops.load.needle import plan
from kvops.load.records import ErrorClass, NeedleScore, RequestRecord
from kvops.load.reports.base import RunData
from kvops.verify.check import Finding
from kvops.verify.checks.recall import GridParameters, fitting, judge, require_answers, scores
from kvops.verify.checks.recall_load import Pair, UnderLoadParameters
from kvops.verify.checks.recall_load import judge as judge_pairs
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


def data(records: list[RequestRecord]) -> RunData:
    return run("needle_recall", records, lengths=LENGTHS, depths=DEPTHS, repeats=3)


def verdict(records: list[RequestRecord]) -> tuple[str, str]:
    try:
        outcome = judge(scores(records), GridParameters(), data(records))
    except Finding as finding:
        outcome = finding.outcome
    return outcome.verdict, str(outcome.observed)


@pytest.mark.parametrize(
    ("missed", "wanted", "says"),
    [
        ((), "pass", "9/9 at 256, 9/9 at 1 024"),
        (((1024, 0.0, 1),), "pass", "8/9 at 1 024"),
        (((1024, 50.0, 3),), "fail", "none of 3 at 50 % depth"),
        (tuple((1024, d, 2) for d in DEPTHS), "fail", "3/9 at 1 024"),
        (((1024, 0.0, 1), (1024, 50.0, 1)), "inconclusive", "too few to tell from chance"),
        (((256, 0.0, 2), (256, 50.0, 1)), "inconclusive", "this model cannot recall"),
        (((256, 0.0, 1), (1024, 0.0, 1)), "pass", "8/9"),
    ],
)
def test_each_length_is_measured_by_the_shortest(
    missed: tuple[tuple[int, float, int], ...], wanted: str, says: str
) -> None:
    found, observed = verdict(grid(*missed))
    assert found == wanted, observed
    assert says in observed


def test_a_cell_of_two_answers_proves_nothing_by_itself() -> None:
    found, _ = verdict(grid((1024, 50.0, 2), repeats=2))
    assert found == "inconclusive"


def test_more_answers_tell_what_few_left_open() -> None:
    missed = [(1024, depth, 14) for depth in DEPTHS]
    assert verdict(grid(*missed, repeats=50))[0] == "fail"


def test_one_length_alone_is_no_comparison() -> None:
    assert verdict([one for one in grid() if one.needle and one.needle.length == 256])[0] == (
        "inconclusive"
    )
    assert verdict([])[0] == "inconclusive"


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


@pytest.mark.parametrize("missing", [ErrorClass.HTTP_429, None])
def test_a_grid_that_was_not_asked_to_the_end_is_open(missing: ErrorClass | None) -> None:
    records = [*grid()[1:], *controls()]
    if missing is not None:
        records.append(lost("needle", 1.0, missing))
    with pytest.raises(Finding) as caught:
        require_answers(data(records))
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

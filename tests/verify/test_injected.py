"""Which answers to injections are a node's harm, which are another engine's leniency."""

from __future__ import annotations

from typing import Any

import pytest

from kvops.load import injection, malformed
from kvops.load.records import ErrorClass, RequestRecord
from kvops.verify.check import Finding, Outcome
from kvops.verify.checks.injected import judge_injection
from tests.load.made import answer, run

LAST = list(malformed.expectations())[-1]
FIRST = next(iter(malformed.expectations()))


def whole(names: list[str]) -> list[RequestRecord]:
    """Each injection refused rightly, then a canary and a look at liveness."""
    records = [answer("canary before all", 0.5, finish_reason="length")]
    for name in names:
        records += [
            answer(name, 1.0, ttft=None, status=400),
            answer(f"canary after {name}", 1.0, finish_reason="length"),
            answer(f"livez after {name}", 1.0, ttft=None),
        ]
    return records


def judged(
    *changes: tuple[str, dict[str, Any]],
    ours: bool = False,
    restarts: tuple[int | None, int | None] = (None, None),
    limit: int | None = 512,
    without: tuple[str, ...] = (),
) -> Outcome:
    """Of runs whose records of these names are otherwise; a name that ends in a space is that of all it begins."""
    runs = []
    for scenario, every in (
        ("oversize_injection", injection.expectations()),
        ("malformed_input", malformed.expectations()),
    ):
        records = whole([name for name in every if name not in without])
        for name, fields in changes:
            records = [_changed(one, name, fields) for one in records]
        runs.append(run(scenario, records))
        runs[-1].info.max_model_len = limit
    try:
        return judge_injection(runs, *restarts, ours=ours)
    except Finding as finding:
        return finding.outcome


def _changed(record: RequestRecord, name: str, fields: dict[str, Any]) -> RequestRecord:
    hit = record.name == name or (name.endswith(" ") and record.name.startswith(name))
    return answer(record.name, 1.0, **({"expected": False} | fields)) if hit else record


TAKEN = {"status": 200, "finish_reason": "length", "error_class": ErrorClass.WRONG_STATUS}
REFUSED_OTHERWISE = {"status": 403, "error_class": ErrorClass.WRONG_STATUS}
NO_ROUTE = {"status": 404, "error_class": ErrorClass.NODE_DOWN}
SERVER_ERROR = {"status": 500, "error_class": ErrorClass.WRONG_STATUS}
SILENCE = {"status": None, "error_class": ErrorClass.WRONG_STATUS}
BROKEN_OFF = {"status": 200, "finish_reason": None, "error_class": ErrorClass.WRONG_STATUS}
OTHER_ANSWER = {"status": 200, "finish_reason": "length", "error_class": ErrorClass.WRONG_ANSWER}
DEAD = {"status": 503, "error_class": ErrorClass.NODE_DOWN}
FULL = {"status": 503, "error_class": ErrorClass.HTTP_503}
QUEUE_FULL = {"status": 429, "error_class": ErrorClass.HTTP_429_QUEUE_FULL}
REPLACED = {"status": 503, "error_class": ErrorClass.HTTP_503_ENGINE_RESTARTED}


@pytest.mark.parametrize(
    ("name", "fields", "other", "ours"),
    [
        (FIRST, TAKEN, "warn", "fail"),
        (FIRST, REFUSED_OTHERWISE, "warn", "fail"),
        ("limit", REFUSED_OTHERWISE, "warn", "fail"),
        (FIRST, SERVER_ERROR, "fail", "fail"),
        (FIRST, SILENCE, "fail", "fail"),
        (FIRST, BROKEN_OFF, "fail", "fail"),
        (f"livez after {FIRST}", DEAD, "fail", "fail"),
        ("livez after ", NO_ROUTE, "pass", "fail"),
        (f"canary after {LAST}", OTHER_ANSWER, "fail", "fail"),
        ("canary after ", OTHER_ANSWER, "warn", "fail"),
        (f"canary after {LAST}", REFUSED_OTHERWISE, "fail", "fail"),
        (f"canary after {LAST}", FULL, "inconclusive", "inconclusive"),
        (f"canary after {LAST}", QUEUE_FULL, "inconclusive", "inconclusive"),
        (FIRST, FULL, "inconclusive", "inconclusive"),
        (f"canary after {LAST}", REPLACED, "fail", "fail"),
    ],
)
def test_another_engine_is_judged_by_harm_and_ours_by_its_contract(
    name: str, fields: dict[str, Any], other: str, ours: str
) -> None:
    assert judged().verdict == judged(ours=True).verdict == "pass"
    found, held = judged((name, fields)), judged((name, fields), ours=True)
    assert (found.verdict, held.verdict) == (other, ours), (found.observed, held.observed)


def test_a_remark_names_what_was_taken_and_that_no_harm_was_done() -> None:
    outcome = judged(*((name, TAKEN) for name in list(malformed.expectations())[:6]))
    assert outcome.verdict == "warn"
    tried = len(injection.expectations()) + len(malformed.expectations())
    assert f"6 of {tried} injections" in str(outcome.observed)
    assert f"{FIRST}, " in str(outcome.observed)
    assert "and 2 more; no harm done" in str(outcome.observed)
    assert len(outcome.evidence["lenient"]) == 6


def test_harm_beside_leniency_is_what_is_told() -> None:
    outcome = judged((FIRST, TAKEN), (LAST, SERVER_ERROR))
    assert (outcome.verdict, outcome.observed) == ("fail", f"{LAST}: wrong_status")


def test_a_restart_is_harm_on_any_engine() -> None:
    assert judged(restarts=(0, 1)).verdict == "fail"
    assert judged((FIRST, FULL), restarts=(0, 1)).verdict == "fail"


def test_an_engine_that_lists_no_limit_is_told_what_was_not_tried() -> None:
    lengths = ("limit-1", "limit", "limit+1", "2x limit", "answer over limit")
    unlisted = judged(limit=None, without=lengths)
    assert unlisted.verdict == "warn"
    assert "no length tried" in str(unlisted.observed)
    assert judged(limit=None, without=lengths, ours=True).verdict == "inconclusive"
    assert judged(without=lengths).verdict == "inconclusive"
    assert judged(without=("limit-1", "limit")).verdict == "pass"

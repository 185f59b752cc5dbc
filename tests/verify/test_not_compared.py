"""A comparison without a row is never taken for one: skipped and said where it may be, else inconclusive or refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kvops.errors import UsageError
from kvops.verify import baseline, runs
from kvops.verify.profile import BaselineRules
from kvops.verify.result import Report
from tests.verify.made import report, row, series
from tests.verify.test_baseline import FACTS, MADE, NODE, RULES, measured, one_row


def test_without_an_earlier_run_a_skipped_row_says_so() -> None:
    made = baseline.compared(report(row()), None, RULES)
    assert (one_row(made).verdict, made.verdict) == ("skip", "pass")
    assert "no earlier good run" in str(one_row(made).observed)
    assert baseline.compared(report(row("skip")), None, RULES).verdict == "inconclusive"


@pytest.mark.parametrize(
    ("kept", "says"),
    [
        (report(row()), "run-a, does not count, it measured nothing"),
        (report(measured(a=series([1.0] * 9)), row("fail", "a.b")), "it was not good: fail"),
        (report(measured(a=series([1.0] * 9)), profile="golive"), "it is of profile golive"),
        (report(row(), profile="golive"), "profile golive; it measured nothing"),
    ],
)
def test_it_is_said_why_a_kept_run_does_not_count(
    kept: Report, says: str, kvops_home: Path
) -> None:
    runs.save(msgspec.structs.replace(kept, run_id="run-a"))
    found = one_row(baseline.compared(report(row()), None, RULES))
    assert says in str(found.observed)


def test_where_a_comparison_is_required_none_is_inconclusive(kvops_home: Path) -> None:
    advisory = BaselineRules(severity="advisory")
    made = baseline.compared(report(measured(a=series([1.0] * 9))), None, advisory, required=True)
    assert (one_row(made).id, one_row(made).verdict) == ("baseline.none", "inconclusive")
    assert (one_row(made).severity, made.exit_code) == ("required", 3)
    assert str(kvops_home) in one_row(made).remedy
    assert "leave --require-baseline out of the first run" in one_row(made).remedy


def test_a_named_run_with_which_nothing_was_compared_is_inconclusive_and_not_compared_with() -> (
    None
):
    before = report(measured(a=series([1.0] * 9)), run_id="20260101T000000-000000")
    made = baseline.compared(report(row()), before, RULES)
    assert (one_row(made).id, one_row(made).verdict) == ("baseline.none", "inconclusive")
    assert (made.baseline, made.verdict, made.exit_code) == (None, "inconclusive", 3)
    assert "20260101T000000-000000" in str(one_row(made).observed)
    assert one_row(made).remedy


def test_a_named_run_of_which_nothing_runs_again_is_refused_before_the_start(
    kvops_home: Path,
) -> None:
    file = runs.save(report(measured(a=series([1.0] * 9))))
    assert baseline.named(str(file), MADE) is not None
    with pytest.raises(UsageError, match=r"holds measurements of perf\.ttft, and none") as caught:
        baseline.named(str(file), ["resp.short"])
    assert "--profile smoke" in (caught.value.hint or "")


def test_last_passes_over_a_run_that_measured_nothing_of_what_runs(kvops_home: Path) -> None:
    other = row("pass", "load.soak", samples={"x": series([1.0] * 9)})
    runs.save(report(measured(a=series([1.0] * 9)), run_id="20260101T000000-a"))
    runs.save(report(other, run_id="20260102T000000-b"))
    found = baseline.last_good(NODE, FACTS, "smoke", MADE)
    assert found is not None
    assert found.run_id == "20260101T000000-a"
    made = baseline.compared(report(row()), None, RULES)
    assert "it measured nothing of what runs now" in str(one_row(made).observed)

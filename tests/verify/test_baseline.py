"""`--baseline`: worse is told from noise, sameness is shown, and what is not alike is not compared in silence."""

from __future__ import annotations

import json
import random
from pathlib import Path

import msgspec
import pytest

from kvops.errors import UsageError
from kvops.telemetry.targets import Target
from kvops.verify import baseline, runs, words
from kvops.verify.check import MAX_SAMPLES, Samples
from kvops.verify.facts import Facts
from kvops.verify.profile import BaselineRules
from kvops.verify.result import CheckResult, Report
from kvops.verify.series import judge
from kvops.verify.verdict import Verdict
from tests.verify.made import WAIVER, report, row, series

RULES = BaselineRules()
FACTS = Facts(engine="kvops", model="words")
MADE = ["resp.short", "perf.ttft"]
"""Checks of the run that is compared."""
NODE = Target(name="n", url="http://127.0.0.1:1")


def noise(middle: float, count: int, seed: int, spread: float = 0.05) -> list[float]:
    drawn = random.Random(seed)
    return [middle * drawn.lognormvariate(0, spread) for _ in range(count)]


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (series(noise(1, 40, 1)), series(noise(1, 40, 2)), "pass"),
        (series(noise(1, 5, 1)), series(noise(1, 5, 2)), "pass"),
        (series(noise(1, 40, 1)), series(noise(0.5, 40, 2)), "pass"),
        (series(noise(1, 40, 1)), series(noise(1.6, 40, 2)), "fail"),
        (series(noise(1, 5, 1)), series(noise(2, 5, 2)), "fail"),
        (series(noise(1, 200, 1, 0.2)), series(noise(1.1, 200, 2, 0.2)), "pass"),
        (series(noise(1, 40, 1, 0.2)), series(noise(1.2, 40, 2, 0.2)), "warn"),
        (series(noise(1, 12, 1, 0.6)), series(noise(1, 12, 2, 0.6)), "inconclusive"),
        (series(noise(1, 4, 1)), series(noise(1, 40, 2)), "inconclusive"),
        (series([]), series(noise(1, 40, 2)), "inconclusive"),
        (series(noise(1, 40, 1)), series([], lost=40), "fail"),
        (series(noise(1, 40, 1)), series(noise(1, 28, 2), lost=12), "fail"),
        (series(noise(9, 40, 1), direction="higher"), series(noise(4, 40, 2), direction="higher"), "fail"),
        (series(noise(4, 40, 1), direction="higher"), series(noise(9, 40, 2), direction="higher"), "pass"),
        (series(noise(9, 40, 1), direction="higher"), series([], lost=40, direction="higher"), "fail"),
    ],
)  # fmt: skip
def test_a_series_is_judged_by_shift_size_and_sureness(
    before: Samples, after: Samples, verdict: Verdict
) -> None:
    found = judge(before, after, 0.25, 0.98, 5)
    assert found.verdict == verdict, (found.observed, found.evidence)


def test_a_tail_that_grew_is_worse_though_the_middle_is_the_same() -> None:
    slow = noise(1, 170, 2) + noise(4, 30, 3)
    found = judge(series(noise(1, 200, 1)), series(slow), 0.25, 0.98, 5)
    assert found.verdict == "fail"
    assert "beyond the p95" in found.observed


def test_the_same_against_itself_gives_no_alarm() -> None:
    seen = [
        judge(series(noise(1, 20, 2 * i)), series(noise(1, 20, 2 * i + 1)), 0.25, 0.98, 5).verdict
        for i in range(200)
    ]
    assert set(seen) == {"pass"}


def measured(**named: Samples) -> CheckResult:
    names = {name.replace("_", "."): samples for name, samples in named.items()}
    return row("pass", "perf.ttft", samples=names, parameters={"lengths": [64], "min_samples": 1})


def one_row(made: Report) -> CheckResult:
    return made.checks[-1]


def test_a_regression_is_a_row_and_fails_the_run() -> None:
    before = report(measured(ttft_64=series(noise(1, 20, 1))), run_id="20260101T000000-000000")
    made = baseline.compared(report(measured(ttft_64=series(noise(2, 20, 2)))), before, RULES)
    assert (one_row(made).id, one_row(made).verdict) == ("baseline.ttft.64", "fail")
    assert (made.verdict, made.exit_code) == ("fail", 1)
    assert words.conclusion(made) == "failed: baseline.ttft.64"
    assert one_row(made).remedy
    assert made.baseline is not None
    assert made.baseline.run_id == "20260101T000000-000000"


def test_a_regression_can_be_waived() -> None:
    before = report(measured(ttft_64=series(noise(1, 20, 1))))
    waiver = msgspec.structs.replace(WAIVER, id="baseline.ttft.64")
    now = report(measured(ttft_64=series(noise(2, 20, 2))), waivers=(waiver,))
    made = baseline.compared(now, before, RULES)
    assert (made.verdict, made.exit_code) == ("warn", 0)
    assert words.conclusion(made) == "passed with 1 waiver; 1 of 2 required checks passed"


def test_what_was_not_measured_again_or_otherwise_is_never_a_pass() -> None:
    before = report(measured(ttft_64=series(noise(1, 20, 1)), rate=series(noise(9, 20, 1))))
    now = measured(ttft_64=series(noise(1, 20, 2)))
    made = baseline.compared(report(now), before, RULES)
    assert [(c.id, c.verdict) for c in made.checks[1:]] == [
        ("baseline.ttft.64", "pass"),
        ("baseline.rate", "inconclusive"),
    ]
    other = msgspec.structs.replace(now, parameters={"lengths": [128], "min_samples": 9})
    made = baseline.compared(report(other), before, RULES)
    assert [c.verdict for c in made.checks[1:]] == ["inconclusive", "inconclusive"]
    assert "another lengths" in str(made.checks[1].observed)
    assert (made.verdict, made.exit_code) == ("inconclusive", 3)


def short(factor: float, seed: int) -> CheckResult:
    """Three values at each of five lengths."""
    lengths = {f"ttft_{2**i}": series(noise(factor * 2**i, 3, seed + i)) for i in range(5)}
    return measured(**lengths, rate=series(noise(9, 20, 1), direction="higher"))


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "pass"), (2.0, "fail")])
def test_series_too_short_alone_are_judged_together(factor: float, verdict: Verdict) -> None:
    made = baseline.compared(report(short(factor, 10)), report(short(1.0, 20)), RULES)
    assert [(c.id, c.verdict, c.n) for c in made.checks[1:]] == [
        ("baseline.ttft", verdict, 15),
        ("baseline.rate", "pass", 20),
    ]


def test_a_short_series_that_is_alone_is_open() -> None:
    before = report(measured(ttft_64=series([1.0] * 3), rate=series([1.0] * 3)))
    made = baseline.compared(before, before, RULES)
    assert [(c.id, c.verdict) for c in made.checks[1:]] == [
        ("baseline.ttft.64", "inconclusive"),
        ("baseline.rate", "inconclusive"),
    ]


def test_units_that_changed_are_not_compared() -> None:
    before = report(measured(a=series([1.0] * 9, unit="ms")))
    made = baseline.compared(report(measured(a=series([1.0] * 9))), before, RULES)
    assert one_row(made).verdict == "inconclusive"
    assert "ms" in str(one_row(made).observed)


def test_what_differs_and_what_is_new_is_said() -> None:
    before = report(measured(a=series([1.0] * 9)))
    target = msgspec.structs.replace(before.target, config_hash="old", engine_version="1")
    before = msgspec.structs.replace(before, target=target, exit_code=1, verdict="fail")
    target = msgspec.structs.replace(target, config_hash="new", engine_version="2", model="other")
    now = report(measured(a=series([1.0] * 9), b=series([1.0] * 9)), target=target)
    facts = baseline.compared(now, before, RULES).baseline
    assert facts is not None
    said = "; ".join(facts.differences)
    for words_ in (
        "configuration old then, new now",
        "engine version 1 then, 2 now",
        "not good: fail",
    ):
        assert words_ in said
    assert said.count("model words then, other now") == 1
    assert facts.new == ("b",)


def test_a_profile_sets_severity_and_tolerance_of_series_by_pattern() -> None:
    rules = BaselineRules.model_validate(
        {"series": {"ttft.*": {"tolerance": 2}, "rate": {"severity": "advisory"}}}
    )
    before = report(measured(ttft_64=series(noise(1, 20, 1)), rate=series(noise(1, 20, 3))))
    now = report(measured(ttft_64=series(noise(2, 20, 2)), rate=series(noise(2, 20, 4))))
    made = baseline.compared(now, before, rules)
    assert [(c.verdict, c.severity) for c in made.checks[1:]] == [
        ("pass", "required"),
        ("fail", "advisory"),
    ]
    assert made.verdict == "warn"


def test_last_is_the_latest_good_run_of_the_same_thing(kvops_home: Path) -> None:
    def keep(run_id: str, made: Report) -> None:
        runs.save(msgspec.structs.replace(made, run_id=run_id))

    good = report(measured(a=series([1.0] * 9)))
    assert baseline.last_good(NODE, FACTS, "smoke", MADE) is None
    keep("20260101T000000-a", good)
    keep("20260102T000000-b", good)
    other = msgspec.structs.replace(good.target, model="other")
    elsewhere = msgspec.structs.replace(good.target, name="m", url="http://127.0.0.1:2")
    keep("20260103T000000-c", msgspec.structs.replace(good, target=other))
    keep("20260104T000000-d", report(*good.checks, row("fail", "a.b")))
    keep("20260105T000000-e", msgspec.structs.replace(good, profile="golive"))
    keep("20260106T000000-f", report(row()))
    keep("20260107T000000-g", msgspec.structs.replace(good, target=elsewhere))
    found = baseline.last_good(NODE, FACTS, "smoke", MADE)
    assert found is not None
    assert found.run_id == "20260102T000000-b"


def test_checks_that_measured_then_and_are_in_no_profile_now_are_named() -> None:
    other = row("pass", "load.soak", samples={"x": series([1.0] * 9)})
    before = report(measured(a=series([1.0] * 9)), other)
    now = report(measured(a=series([1.0] * 9)))
    facts = baseline.compared(now, before, RULES).baseline
    assert facts is not None
    assert "do not run now: load.soak" in "; ".join(facts.differences)


def test_an_open_comparison_names_the_line_to_write() -> None:
    check = row("pass", "perf.ttft_truth", parameters={"requests": 8, "budget": 10.0})
    few = msgspec.structs.replace(check, samples={"ttft.idle": series([1.0] * 3)})
    found = baseline.compared(report(few), report(few), RULES).checks[-1]
    assert found.verdict == "inconclusive"
    assert "{id: perf.ttft_truth, parameters: {budget: 40}}" in found.remedy


@pytest.mark.parametrize(("count", "is_open"), [(3, True), (40, False)])
def test_a_series_is_open_until_its_comparison_is_decided(count: int, is_open: bool) -> None:
    before = report(measured(a=series(noise(1, 40, 1))))
    assert baseline.still_open(before, RULES, "a", series(noise(1, count, 2))) is is_open
    assert not baseline.still_open(before, RULES, "b", series([1.0] * 3)), "no such series then"
    assert not baseline.still_open(None, RULES, "a", series([1.0] * 3)), "nothing is compared"


def test_another_model_is_refused_unless_forced() -> None:
    before = report(measured(a=series([1.0] * 9)))
    other = Facts(engine="kvops", model="other")
    with pytest.raises(UsageError, match="model words then, other now"):
        baseline.require_alike(before, other, force=False)
    baseline.require_alike(before, other, force=True)
    baseline.require_alike(before, FACTS, force=False)


def test_a_run_without_measurements_is_no_baseline(kvops_home: Path, tmp_path: Path) -> None:
    file = runs.save(report(row()))
    with pytest.raises(UsageError, match="holds no measurements"):
        baseline.named(str(file), MADE)
    wrong = tmp_path / "x.json"
    wrong.write_text(json.dumps({"a": 1}))
    for text, says in ((str(wrong), "no result of kvops verify"), ("2027", "no run '2027'")):
        with pytest.raises(UsageError) as caught:
            baseline.named(text, MADE)
        assert says in caught.value.message


def test_samples_are_bounded_evenly_and_failures_stay_counted() -> None:
    values = [float(i) if i % 10 else float("inf") for i in range(50_000)]
    made = Samples.of(values, unit="seconds", direction="lower")
    assert len(made.values) + made.lost == MAX_SAMPLES
    assert made.total == 50_000
    assert made.values[0] < 50
    assert made.values[-1] > 49_900
    with pytest.raises(ValueError, match=r"Samples\.of"):
        Samples(values=(float("nan"),), unit="seconds", direction="lower")
    with pytest.raises(ValueError, match=r"Samples\.of"):
        Samples(values=(1.0,) * (MAX_SAMPLES + 1), unit="seconds", direction="lower")

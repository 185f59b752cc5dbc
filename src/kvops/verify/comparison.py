"""The rows of a comparison with an earlier run: one a series, or one that says why there is none."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvops import paths
from kvops.units import format_ratio
from kvops.verify.amounts import line_for_more
from kvops.verify.check import Samples
from kvops.verify.profile import BaselineRules, SeriesRule
from kvops.verify.result import CheckResult, Report
from kvops.verify.series import Judgement, judge, middle, pooled
from kvops.verify.waivers import BASELINE
from kvops.verify.words import NOT_COMPARED

_COUNTS_ONLY = ("min_samples", "samples", "budget")
"""Parameters that change how many values there are, and nothing of what they are."""
_TITLE = "Not worse than before"
_PURPOSE = "A measurement is not worse than in the last good run, by a two-sample test with a floor of what counts."


def measuring(report: Report) -> set[str]:
    """Ids of the checks that left series."""
    return {check.id for check in report.checks if check.samples}


def rows_of(report: Report, before: Report, rules: BaselineRules) -> Iterator[CheckResult]:
    now = {check.id: check for check in report.checks}
    for was in before.checks:
        check = now.get(was.id)
        if check is None:
            continue  # left out of this run, which the report says already
        pairs = [_Pair(name, was, check, samples) for name, samples in was.samples.items()]
        for name, small in _families(pairs, rules.min_samples).items():
            pairs = [pair for pair in pairs if pair not in small]
            yield _row(name, check, pooled([(p.before, p.after) for p in small if p.after]), rules)
        for pair in pairs:
            yield _row(pair.name, check, pair.obstacle() or (pair.before, pair.after), rules)


@dataclass(frozen=True)
class _Pair:
    """One series then and now."""

    name: str
    was: CheckResult
    check: CheckResult
    before: Samples

    @property
    def after(self) -> Samples | None:
        return self.check.samples.get(self.name)

    def obstacle(self) -> str:
        """Why the two cannot be compared; empty when they can."""
        if self.after is None:
            return "not measured in this run"
        now = self.check.parameters
        then = {key: value for key, value in self.was.parameters.items() if key not in _COUNTS_ONLY}
        changed = [key for key, value in then.items() if value != now.get(key)]
        if changed:
            return f"measured with another {', '.join(changed)}"
        if (self.before.unit, self.before.direction) != (self.after.unit, self.after.direction):
            return f"measured in {self.before.unit} then, {self.after.unit} now"
        return ""


def _families(pairs: Sequence[_Pair], fewest: int) -> dict[str, list[_Pair]]:
    """Series of one check and one name up to its last dot, each with too few values, which are enough together."""
    found: dict[str, list[_Pair]] = {}
    for pair in pairs:
        if (
            not pair.obstacle()
            and pair.after
            and min(_count(pair.before), _count(pair.after)) < fewest
        ):
            found.setdefault(pair.name.rpartition(".")[0], []).append(pair)
    return {
        name: small
        for name, small in found.items()
        if name
        and len(small) > 1
        and len({(p.before.unit, p.before.direction) for p in small}) == 1
    }


def _count(samples: Samples) -> int:
    return len(samples.values) + samples.lost


def _row(
    name: str, check: CheckResult, given: str | tuple[Samples, Samples | None], rules: BaselineRules
) -> CheckResult:
    """`given`: the series then and now, or why they cannot be compared."""
    rule, tolerance = _rule(name, rules), tolerance_of(name, rules)
    severity = rules.severity if rule is None or rule.severity is None else rule.severity
    expected = f"at most {format_ratio(tolerance)} worse"
    if isinstance(given, str) or given[1] is None:
        found = Judgement("inconclusive", given if isinstance(given, str) else "", n=0)
    else:
        found = judge(given[0], given[1], tolerance, rules.confidence, rules.min_samples)
        worse = "more" if given[0].direction == "lower" else "less"
        expected = f"at most {format_ratio(tolerance)} {worse} than {middle(given[0])}"
    return CheckResult(
        id=f"{BASELINE}{name}",
        title=_TITLE,
        purpose=_PURPOSE,
        area=check.area,
        severity=severity,
        verdict=found.verdict,
        observed=found.observed,
        expected=expected,
        unit="",
        n=found.n,
        min_samples=rules.min_samples,
        took_seconds=0.0,
        parameters={"tolerance": tolerance, "confidence": rules.confidence},
        evidence=found.evidence | {"check": check.id},
        remedy="" if found.verdict == "pass" else _remedy(found, check),
    )


def _rule(name: str, rules: BaselineRules) -> SeriesRule | None:
    return next((r for pattern, r in rules.series.items() if fnmatch.fnmatch(name, pattern)), None)


def tolerance_of(name: str, rules: BaselineRules) -> float:
    """Relative change for the worse of this series that is put up with."""
    rule = _rule(name, rules)
    return rules.tolerance if rule is None or rule.tolerance is None else rule.tolerance


def _remedy(found: Judgement, check: CheckResult) -> str:
    if found.verdict == "inconclusive":
        more = line_for_more(check)
        return f"on an idle machine, or with more values, {more}for this run and a new one to compare with"
    return "look at what changed since (kvops config history), and run again on an idle machine"


def no_row(
    report: Report, before: Report | None, rules: BaselineRules, required: bool, why: str
) -> CheckResult:
    """The row of a run with which nothing was compared, so that it cannot be taken for one that is not worse.

    `why`: in words, where there is no earlier run.
    """
    observed = why
    if before is not None:
        observed = f"no series of run {before.run_id} is measured by a check of this run"
    return CheckResult(
        id=NOT_COMPARED,
        title=_TITLE,
        purpose=_PURPOSE,
        severity="required" if required else rules.severity,
        verdict="inconclusive" if required or before else "skip",
        observed=observed,
        expected="a series that both runs measure" if required or before else None,
        unit="",
        n=0,
        took_seconds=0.0,
        parameters={},
        evidence={} if before is None else {"run": before.run_id},
        remedy=_first_step(report, required),
    )


def _first_step(report: Report, required: bool) -> str:
    if not measuring(report):
        return f"profile {report.profile} measures nothing here: take one that does, such as golive"
    if required:
        return (
            f"keep {paths.runs_dir()} from one job to the next, or a file of --json, and name that: --baseline FILE; "
            "leave --require-baseline out of the first run"
        )
    return "this run can be the first: --baseline last finds it the next time, if it is good"

"""Measurements of a run against those of an earlier good one: a row for each series, judged as a check is.

Worse is a shift that a two-sample test tells from none and that is larger than what the profile tolerates; not worse
has to be shown by the interval of the shift. A comparison of what is not alike is refused, or says so.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from kvops.errors import UsageError
from kvops.telemetry.targets import Target
from kvops.units import format_ratio
from kvops.verify import runs
from kvops.verify.amounts import line_for_more
from kvops.verify.check import Samples
from kvops.verify.facts import Facts
from kvops.verify.profile import BaselineRules, SeriesRule
from kvops.verify.result import BaselineFacts, CheckResult, Report, concluded, exit_code
from kvops.verify.resume import differences
from kvops.verify.series import Judgement, judge, middle, pooled
from kvops.verify.waivers import BASELINE, covering

_COUNTS_ONLY = ("min_samples", "samples", "budget")
"""Parameters that change how many values there are, and nothing of what they are."""
_TITLE = "Not worse than before"
_PURPOSE = "A measurement is not worse than in the last good run, by a two-sample test with a floor of what counts."


def named(text: str) -> Report | None:
    """The run that `--baseline` names; None for `last`, which is known only with the node. Raises UsageError."""
    if text == runs.LAST:
        return None
    report = runs.find(text)
    if not any(check.samples for check in report.checks):
        raise UsageError(
            f"--baseline {text}: run {report.run_id} holds no measurements to compare with",
            hint="name one of a profile that measures, such as golive: kvops verify runs",
        )
    return report


def last_good(target: Target, facts: Facts, profile: str) -> Report | None:
    """The latest kept run of this profile on this node, with this engine and model, that exited with 0 and measured."""
    for report in runs.reports():
        if _is_of(report, target.name, target.url) and not _obstacles(report, facts, profile):
            return report
    return None


def _is_of(report: Report, name: str, url: str) -> bool:
    return report.target.name == name or report.target.url == url


def _obstacles(report: Report, facts: Facts, profile: str) -> list[str]:
    """Why a run of the same node does not count as the last good one, in words; empty when it does."""
    found = [] if report.profile == profile else [f"it is of profile {report.profile}"]
    found += unlike(report.target, facts)
    if report.exit_code != 0:
        found.append(f"it was not good: {report.verdict}")
    if not any(check.samples for check in report.checks):
        found.append("it measured nothing")
    return found


def _why_none(report: Report) -> str:
    """Of the kept runs of this node the one that nearly counted, with what it lacks."""
    target = report.target
    others = [
        (kept, _obstacles(kept, target, report.profile))
        for kept in runs.reports()
        if kept.run_id != report.run_id and _is_of(kept, target.name, target.url)
    ]
    if not others:
        return "no earlier good run is kept, nor any other of this node"
    # The first of the nearest is the latest of them.
    kept, lacks = min(others, key=lambda one: len(one[1]))
    return f"no earlier good run is kept: the nearest, {kept.run_id}, does not count, {'; '.join(lacks)}"


def still_open(before: Report | None, rules: BaselineRules, name: str, samples: Samples) -> bool:
    """Whether a series of `before` cannot be told yet from these samples of now, and more of them may tell."""
    for was in before.checks if before else ():
        if name in was.samples:
            found = judge(
                was.samples[name],
                samples,
                _tolerance(name, rules),
                rules.confidence,
                rules.min_samples,
            )
            return found.verdict == "inconclusive"
    return False


def unlike(before: Facts, now: Facts) -> list[str]:
    """Why two runs measure different things, in words; empty when they do not."""
    return [
        f"{what} {was or 'unknown'} then, {is_now or 'unknown'} now"
        for what, was, is_now in (
            ("model", before.model, now.model),
            ("engine", before.engine, now.engine),
        )
        if was != is_now
    ]


def require_alike(before: Report, facts: Facts, *, force: bool) -> None:
    """Raises UsageError before any check is run when the comparison would be of other things, unless forced."""
    found = unlike(before.target, facts)
    if found and not force:
        raise UsageError(
            f"--baseline {before.run_id} is of something else: {'; '.join(found)}",
            hint="name a run that is alike, or compare all the same with --force-baseline",
        )


def compared(report: Report, before: Report | None, rules: BaselineRules) -> Report:
    """`report` with a row a series, and the verdict that follows. Without an earlier run a skipped row says so."""
    rows = list(_rows(report, before, rules)) if before else [_nothing(report, rules)]
    rows = [
        msgspec.structs.replace(row, waived=covering(report.waivers, row.id, row.verdict))
        for row in rows
    ]
    checks = (*report.checks, *rows)
    verdict = concluded(checks)
    return msgspec.structs.replace(
        report,
        checks=checks,
        baseline=_facts(report, before) if before else None,
        verdict=verdict,
        exit_code=exit_code(verdict),
    )


def _facts(report: Report, before: Report) -> BaselineFacts:
    said = [*unlike(before.target, report.target)]
    said += [line for line in differences(before.target, report.target) if line not in said]
    if before.exit_code != 0:
        said.append(f"that run was not good: {before.verdict}")
    if before.profile_hash != report.profile_hash:
        said.append(f"profile {before.profile} or its thresholds")
    was, now = before.environment, report.environment
    if (was.host, was.cores) != (now.host, now.cores):
        said.append(f"run from {was.host}, {was.cores} cores then, {now.host}, {now.cores} now")
    then = {name for check in before.checks for name in check.samples}
    new = [name for check in report.checks for name in check.samples if name not in then]
    return BaselineFacts(
        run_id=before.run_id,
        started_at=before.started_at,
        model=before.target.model,
        engine=before.target.engine,
        differences=tuple(said),
        new=tuple(new),
    )


def _rows(report: Report, before: Report, rules: BaselineRules) -> Iterator[CheckResult]:
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
    rule, tolerance = _rule(name, rules), _tolerance(name, rules)
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


def _tolerance(name: str, rules: BaselineRules) -> float:
    """Relative change for the worse of this series that is put up with."""
    rule = _rule(name, rules)
    return rules.tolerance if rule is None or rule.tolerance is None else rule.tolerance


def _remedy(found: Judgement, check: CheckResult) -> str:
    if found.verdict == "inconclusive":
        more = line_for_more(check)
        return f"on an idle machine, or with more values, {more}for this run and a new one to compare with"
    return "look at what changed since (kvops config history), and run again on an idle machine"


def _nothing(report: Report, rules: BaselineRules) -> CheckResult:
    measured = any(check.samples for check in report.checks)
    return CheckResult(
        id=f"{BASELINE}none",
        title=_TITLE,
        purpose=_PURPOSE,
        severity=rules.severity,
        verdict="skip",
        observed=_why_none(report),
        expected=None,
        unit="",
        n=0,
        took_seconds=0.0,
        parameters={},
        evidence={},
        remedy="this run can be the first: --baseline last finds it the next time, if it is good"
        if measured
        else f"profile {report.profile} measures nothing here: take one that does, such as golive",
    )

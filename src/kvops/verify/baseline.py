"""Measurements of a run against those of an earlier good one: a row for each series, judged as a check is.

Worse is a shift that a two-sample test tells from none and that is larger than what the profile tolerates; not worse
has to be shown by the interval of the shift. A comparison of what is not alike is refused, or says so.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from kvops.errors import UsageError
from kvops.telemetry.targets import Target
from kvops.verify import runs, words
from kvops.verify.check import Samples
from kvops.verify.comparison import measuring, no_row, rows_of, tolerance_of
from kvops.verify.facts import Facts
from kvops.verify.profile import BaselineRules
from kvops.verify.result import BaselineFacts, Report, concluded, exit_code
from kvops.verify.resume import differences
from kvops.verify.series import judge
from kvops.verify.waivers import covering


def named(text: str, checks: Collection[str]) -> Report | None:
    """The run that `--baseline` names; None for `last`, which is known only with the node.

    `checks`: ids of what is going to run. Raises UsageError, also where none of them measured anything then.
    """
    if text == runs.LAST:
        return None
    report = runs.find(text)
    measured = measuring(report)
    if not measured:
        raise UsageError(
            f"--baseline {text}: run {report.run_id} holds no measurements to compare with",
            hint="name one of a profile that measures, such as golive: kvops verify runs",
        )
    if measured.isdisjoint(checks):
        raise UsageError(
            f"--baseline {text}: run {report.run_id} holds measurements of {words.some(sorted(measured))}, and none of "
            "them is going to run, so nothing would be compared",
            hint=f"let one of them run (--profile {report.profile} has it), or leave --baseline out",
        )
    return report


def last_good(target: Target, facts: Facts, profile: str, checks: Collection[str]) -> Report | None:
    """The latest kept run of this profile on this node, with this engine and model, that exited with 0 and measured

    something that one of `checks` measures.
    """
    for report in runs.reports():
        if _is_of(report, target.name, target.url) and not _obstacles(
            report, facts, profile, checks
        ):
            return report
    return None


def _is_of(report: Report, name: str, url: str) -> bool:
    return report.target.name == name or report.target.url == url


def _obstacles(report: Report, facts: Facts, profile: str, checks: Collection[str]) -> list[str]:
    """Why a run of the same node does not count as the last good one, in words; empty when it does."""
    found = [] if report.profile == profile else [f"it is of profile {report.profile}"]
    found += unlike(report.target, facts)
    if report.exit_code != 0:
        found.append(f"it was not good: {report.verdict}")
    measured = measuring(report)
    if not measured:
        found.append("it measured nothing")
    elif measured.isdisjoint(checks):
        found.append("it measured nothing of what runs now")
    return found


def _why_none(report: Report) -> str:
    """Of the kept runs of this node the one that nearly counted, with what it lacks."""
    target = report.target
    others = [
        (kept, _obstacles(kept, target, report.profile, [check.id for check in report.checks]))
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
                tolerance_of(name, rules),
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


def compared(
    report: Report, before: Report | None, rules: BaselineRules, *, required: bool = False
) -> Report:
    """`report` with a row a series, and the verdict that follows. Where there is none, a row says why: skipped without
    an earlier run, unless a comparison is `required`, and inconclusive where a run was named that had nothing to say.
    """
    rows = list(rows_of(report, before, rules)) if before else []
    if not rows:
        rows = [no_row(report, before, rules, required, "" if before else _why_none(report))]
        before = None
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
    now_made = {check.id for check in report.checks} | set(report.left_out)
    if gone := sorted(measuring(before) - now_made):
        said.append(f"checks that measured then and do not run now: {words.some(gone)}")
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

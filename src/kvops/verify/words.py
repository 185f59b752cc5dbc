"""A gate run in words, the same in every report."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import get_args

from kvops.printable import printable as printable
from kvops.units import format_bytes, format_duration, format_whole
from kvops.verify.check import Op, Value
from kvops.verify.result import CheckResult, Report
from kvops.verify.verdict import RunVerdict, Verdict

_MEANING: dict[RunVerdict, str] = {
    "pass": "no required check failed",
    "warn": "no required check failed",
    "fail": "a required check failed",
    "inconclusive": "a required check could not be decided",
    "unreachable": "no node could be reached",
    "interrupted": "stopped before the end",
}
_FORMATS: dict[str, Callable[[float], str]] = {
    "seconds": format_duration,
    "bytes": format_bytes,
    "×": lambda factor: f"{factor:.2f} ×",
}

_OPS: dict[Op, str] = {"": "", "<": "<", "<=": "≤", "=": "=", ">=": "≥", ">": ">"}
_NAMED = 3
"""Checks that a conclusion names, of those that are told above it anyway."""
NOT_COMPARED = "baseline.none"
"""Row of a run that was to be compared, and with which there was nothing to compare."""
_NOT_SHOWN = "this node does not show it; where nobody counts on it: without: [{id}] in a profile"
_LISTED = 12
_SHORT = 90
"""Characters."""


def value(given: Value, unit: str = "") -> str:
    if given is None:
        return "–"
    if isinstance(given, bool):
        return "yes" if given else "no"
    if isinstance(given, int | float) and unit in _FORMATS:
        return _FORMATS[unit](given)
    if isinstance(given, float):
        given = f"{given:.4g}"
    elif isinstance(given, int):
        given = format_whole(given)
    else:
        return printable(given)
    return printable(f"{given} {unit}".strip())


def observed(check: CheckResult) -> str:
    return value(check.observed, check.unit)


def expected(check: CheckResult) -> str:
    return f"{_OPS[check.op]} {value(check.expected, check.unit)}".strip()


def why(check: CheckResult) -> str:
    """What was seen, short enough for a line of progress; empty of a pass."""
    if check.verdict == "pass":
        return ""
    return textwrap.shorten(observed(check), _SHORT, placeholder=" …")


def took(check: CheckResult) -> str:
    """– where nothing was done: a check that was skipped, a comparison."""
    return format_duration(check.took_seconds) if check.n and check.took_seconds else "–"


def target(report: Report) -> tuple[str, ...]:
    """Address, engine, model, length; of a node that was not reached the address alone."""
    facts = report.target
    engine = " ".join(filter(None, (facts.engine, facts.engine_version)))
    limit = facts.max_model_len
    said = (
        engine or "engine not recognised",
        facts.model or "names no model",
        f"{format_whole(limit)} tokens" if limit else "names no context length",
    )
    known = report.checks or any((engine, facts.model, limit))
    return tuple(printable(part) for part in (facts.url, *(said if known else ())))


def conclusion(report: Report) -> str:
    """Why the verdict is what it is, counted from its checks; skips and waivers are never left unsaid."""
    if report.verdict in ("pass", "warn"):
        said = [*_passed(report), *_missed(report)]
        if report.waived:
            said.insert(0, f"passed with {_count(len(report.waived), 'waiver')}")
    else:
        said = [report.reason or _because(report)]
        if report.waived:
            said[0] += f" ({_count(len(report.waived), 'finding')} waived)"
    if report.contradicts:
        said.insert(0, f"the file says {report.contradicts}, and its own rows say otherwise")
    return printable("; ".join(said))


def _because(report: Report) -> str:
    """`failed: resp.short, resp.stream`."""
    if report.verdict == "fail":
        return _naming("failed", report, ("fail",)) or _MEANING["fail"]
    if report.verdict != "inconclusive":
        return _MEANING[report.verdict]
    open_ones = _naming("undecided", report, ("inconclusive", "error"))
    if open_ones or not report.checks:
        return open_ones or _MEANING["inconclusive"]
    return f"nothing could be looked at: {some([check.id for check in report.checks])}"


def _passed(report: Report) -> list[str]:
    """`35 of 39 required checks passed`; `every` only where it is so."""
    own = [c for c in report.checks if c.severity == "required" and c.id != NOT_COMPARED]
    good = [c for c in own if c.verdict in ("pass", "warn") and not c.waived]
    ran = " that ran" if report.left_out else ""
    if not own:
        said = "no required check is among them"
    elif len(good) == len(own):
        said = f"every required check{ran} passed"
    else:
        said = f"{len(good)} of {len(own)} required checks{ran} passed"
    remarks = [c.id for c in report.checks if c.verdict not in ("pass", "skip") and not c.waived]
    return [said, *([f"with remarks: {some(remarks)}"] if remarks else [])]


def _missed(report: Report) -> list[str]:
    """What a pass does not speak of: what was skipped, and a comparison with nothing."""
    skipped = [c for c in report.checks if c.verdict == "skip" and c.severity == "required"]
    ids = [check.id for check in skipped if check.id != NOT_COMPARED]
    many = f"{len(ids)} could not be looked at, each says what it needs: {some(ids)}"
    said = [many] if ids else []
    said += [f"not compared: {observed(c)}" for c in skipped if c.id == NOT_COMPARED]
    return said


def next_step(check: CheckResult) -> str:
    """What to do about a check that did not pass: for a skipped one always how it would be made, or left out."""
    if check.verdict == "pass":
        return ""
    known = check.remedy or (_NOT_SHOWN.format(id=check.id) if check.verdict == "skip" else "")
    return printable(known)


def _naming(what: str, report: Report, verdicts: tuple[Verdict, ...]) -> str:
    ids = [
        check.id
        for check in report.checks
        if check.severity == "required" and check.verdict in verdicts and check.waived is None
    ]
    more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
    return f"{what}: {', '.join(ids[:_NAMED])}{more}" if ids else ""


def partial(report: Report) -> str:
    """`partial: 3 of 11 checks run`, or empty."""
    if not (report.partial and report.checks):
        return ""
    made = [check for check in report.checks if not check.id.startswith("baseline.")]
    count = len(made) + len(report.not_run) + len(report.left_out)
    return f"partial: {len(made)} of {count} checks run"


def tally(checks: Iterable[CheckResult]) -> str:
    """`9 pass, 1 fail, 1 skip`, in the order of `Verdict`."""
    counts = Counter(check.verdict for check in checks)
    return ", ".join(
        f"{counts[verdict]} {verdict}" for verdict in get_args(Verdict) if counts[verdict]
    )


def waiver(check: CheckResult) -> str:
    """`waived by ops (uid 1000) on 2026-01-02: known, fixed in 1.3`; empty without one."""
    given = check.waived
    if given is None:
        return ""
    return printable(f"waived by {given.by} on {given.at[:10]}: {given.reason}")


def left_out(report: Report) -> list[str]:
    """Lines on what of the profile was not run, and why."""
    lines = [f"not run: {some(report.not_run)}"] if report.not_run else []
    for option in ("--only", "--skip"):
        ids = [name for name, by in report.left_out.items() if by == option]
        if ids:
            lines.append(f"left out by {option}: {some(ids)}")
    unused = {waiver.id for waiver in report.waivers} - {check.id for check in report.waived}
    if unused:
        lines.append(f"waived, but there was nothing to waive: {', '.join(sorted(unused))}")
    return [printable(line) for line in lines]


def baseline(report: Report) -> list[str]:
    """Lines on the run that this one was compared with."""
    facts = report.baseline
    if facts is None:
        return []
    lines = [f"compared with run {facts.run_id} of {facts.started_at[:16].replace('T', ' ')}"]
    lines += [f"differs: {printable(difference)}" for difference in facts.differences]
    if facts.new:
        lines.append(f"new, nothing to compare with: {', '.join(facts.new)}")
    return [printable(line) for line in lines]


def some(ids: Sequence[str]) -> str:
    """All where they can be read at a glance; the result file has them anyway."""
    if len(ids) <= _LISTED:
        return ", ".join(ids)
    return f"{', '.join(ids[: _LISTED - 1])} and {len(ids) - _LISTED + 1} more"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"

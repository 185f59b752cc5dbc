"""A gate run as Markdown, for a merge request or a wiki: the verdict, a row a check, and what to do."""

from __future__ import annotations

import re

from kvops.verify import words
from kvops.verify.result import CheckResult, Report

_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~&!])")
_SIGNS = {
    "pass": "✅",
    "warn": "⚠️",
    "fail": "❌",
    "skip": "➖",
    "inconclusive": "❔",
    "error": "💥",
    "unreachable": "❌",
    "interrupted": "⏸️",
}


def render(report: Report) -> bytes:
    lines = [
        f"# {_SIGNS[report.verdict]} kvops verify {_text(report.profile)}: {report.verdict}",
        "",
        _text(words.conclusion(report)) + f" (exit code {report.exit_code})",
        "",
        *_facts(report),
        "",
        *_table(report),
        *_remedies(report),
        *(f"\n{_text(line)}" for line in (*words.left_out(report), *words.baseline(report))),
    ]
    return ("\n".join(lines).rstrip() + "\n").encode()


def _facts(report: Report) -> list[str]:
    facts = [
        ("node", " · ".join((report.target.name, *words.target(report)))),
        ("run", f"{report.run_id}, {report.started_at[:19].replace('T', ' ')} UTC"),
        ("checks", words.tally(report.checks) or "none"),
        ("scope", words.partial(report)),
    ]
    return [f"- **{name}**: {_text(said)}" for name, said in facts if said]


def _table(report: Report) -> list[str]:
    if not report.checks:
        return []
    rows = ["| check | verdict | observed | expected | n | took |", "|---|---|---|---|--:|--:|"]
    return rows + [_row(check) for check in report.checks]


def _row(check: CheckResult) -> str:
    verdict = f"{_SIGNS[check.verdict]} {check.verdict}"
    if check.severity == "advisory":
        verdict += " (advisory)"
    if check.waived:
        verdict += " (waived)"
    cells = (
        f"{_text(check.title)}<br>{_text(check.id)}",
        verdict,
        _text(words.observed(check)),
        _text(words.expected(check)),
        str(check.n),
        words.took(check),
    )
    return f"| {' | '.join(cells)} |"


def _remedies(report: Report) -> list[str]:
    lines = []
    for check in report.checks:
        said = [words.next_step(check), words.waiver(check)]
        lines += [f"- **{_text(check.id)}**: {_text(line)}" for line in said if line]
    return ["", "## What to do", "", *lines] if lines else []


def _text(text: str) -> str:
    """Nothing that a node said is markup here; a pipe would end its cell."""
    return _SPECIAL.sub(r"\\\1", words.printable(text))

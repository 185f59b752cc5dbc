"""A gate run as a person reads it: one row a check, then what to do about each that did not pass."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvops.units import format_duration, format_whole
from kvops.verify.check import Value
from kvops.verify.result import CheckResult, Report
from kvops.verify.verdict import RunVerdict, Verdict

_STYLES: dict[Verdict | RunVerdict, tuple[str, str, str]] = {
    "pass": ("✓", "+", "green"),
    "warn": ("!", "!", "yellow"),
    "fail": ("✗", "x", "bold red"),
    "skip": ("–", "-", "dim"),
    "inconclusive": ("?", "?", "magenta"),
    "error": ("‼", "!!", "bold magenta"),
    "unreachable": ("✗", "x", "bold red"),
    "interrupted": ("?", "?", "yellow"),
}
_MEANING: dict[RunVerdict, str] = {
    "pass": "every required check passed",
    "warn": "every required check passed, with remarks",
    "fail": "a required check failed",
    "inconclusive": "a required check could not be decided, or everything was skipped",
    "unreachable": "no node could be reached",
    "interrupted": "stopped before the end",
}


_LIST_BELOW = 100
"""Columns of a terminal under which two columns of prose beside each other cannot be read."""


def show(report: Report, console: Console) -> None:
    console.print(Text(_header(report), "bold"))
    if report.checks and console.width >= _LIST_BELOW:
        console.print(_table(report.checks, console))
    elif report.checks:
        console.print(_list(report.checks, console))
    for check in report.checks:
        if check.verdict != "pass" and check.remedy:
            console.print(_remedy(check, console))
    if report.not_run:
        console.print(Text(f"not run: {', '.join(report.not_run)}"))
    for option in ("--only", "--skip"):
        ids = [name for name, by in report.left_out.items() if by == option]
        if ids:
            console.print(Text(f"left out by {option}: {', '.join(ids)}"))
    console.print(_last_line(report, console))


def _header(report: Report) -> str:
    """Of a node that was not reached nothing is known, and nothing is said."""
    target = report.target
    engine = " ".join(filter(None, (target.engine, target.engine_version)))
    limit = target.max_model_len
    said = (
        engine or "engine not recognised",
        target.model or "names no model",
        f"{format_whole(limit)} tokens" if limit else "names no context length",
    )
    told = said if report.checks or any((engine, target.model, limit)) else ()
    return printable(" · ".join((f"verify {report.profile}", target.url, *told)))


def _list(checks: tuple[CheckResult, ...], console: Console) -> Group:
    """For narrow terminals: a line a check, and what was seen under it."""
    lines: list[RenderableType] = []
    for check in checks:
        line = mark(check.verdict, console)
        line.append(f" {check.id}", "bold").append(f"  {_took(check)}", "dim")
        if check.severity == "advisory":
            line.append("  advisory", "dim")
        lines += [line, Padding(_cell(check.observed), (0, 0, 0, 4))]
        if check.verdict != "pass" and check.expected is not None:
            wanted = Text("expected: ", "dim").append_text(_cell(check.expected))
            lines.append(Padding(wanted, (0, 0, 0, 4)))
    return Group(*lines)


def _took(check: CheckResult) -> str:
    return format_duration(check.took_seconds) if check.n else "–"


def _table(checks: tuple[CheckResult, ...], console: Console) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", expand=True)
    table.add_column("check", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("observed", ratio=3)
    table.add_column("expected", ratio=2)
    table.add_column("took", justify="right", no_wrap=True)
    for check in checks:
        name = Text(check.id)
        name.append(f"\n{check.title}", "dim")
        verdict = mark(check.verdict, console)
        if check.severity == "advisory":
            verdict.append("\nadvisory", "dim")
        row = (name, verdict, _cell(check.observed), _cell(check.expected), Text(_took(check)))
        table.add_row(*row)
    return table


def _remedy(check: CheckResult, console: Console) -> Padding:
    line = mark(check.verdict, console)
    line.append(f" {check.id}: ", "bold")
    line.append(printable(check.remedy))
    return Padding(line, (0, 0, 0, 2))


def _last_line(report: Report, console: Console) -> Text:
    line = mark(report.verdict, console)
    meaning = report.reason or _MEANING[report.verdict]
    count = len(report.checks) + len(report.not_run) + len(report.left_out)
    if report.partial and report.checks:
        line.append(f" · partial: {len(report.checks)} of {count} checks run", "bold yellow")
    if report.left_out:
        meaning = meaning.replace(
            "every required check passed", "every required check that ran passed"
        )
    return line.append(f" · {meaning} · exit code {report.exit_code}")


def mark(verdict: Verdict | RunVerdict, console: Console) -> Text:
    """Glyph and word, so that neither colour nor a Unicode font is needed."""
    glyph, plain, style = _STYLES[verdict]
    wide = console.encoding.lower().startswith("utf")
    return Text(f"{glyph if wide else plain} {verdict}", style)


def _cell(value: Value) -> Text:
    return Text("–" if value is None else printable(str(value)))


def printable(text: str) -> str:
    """Without control characters: parts of it came from the node."""
    return "".join(c if c.isprintable() else " " for c in text)

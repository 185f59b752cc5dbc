"""A gate run as a person reads it: one row a check, then what to do about each that did not pass."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvops.units import format_duration
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
    "interrupted": "stopped before the end: what is above is all that was seen",
}


def show(report: Report, console: Console) -> None:
    console.print(Text(_header(report), "bold"))
    if report.checks:
        console.print(_table(report.checks, console))
    for check in report.checks:
        if check.verdict != "pass" and check.remedy:
            console.print(_remedy(check, console))
    if report.not_run:
        console.print(Text(f"not run: {', '.join(report.not_run)}"))
    console.print(_last_line(report, console))


def _header(report: Report) -> str:
    target = report.target
    engine = " ".join(filter(None, (target.engine or "unknown engine", target.engine_version)))
    limit = f"{target.max_model_len:,} tokens" if target.max_model_len else "no limit told"
    parts = (f"verify {report.profile}", target.url, engine, target.model or "no model told", limit)
    return printable(" · ".join(parts))


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
        took = format_duration(check.took_seconds) if check.n else "–"
        row = (name, verdict, _cell(check.observed), _cell(check.expected), Text(took))
        table.add_row(*row)
    return table


def _remedy(check: CheckResult, console: Console) -> Padding:
    line = mark(check.verdict, console)
    line.append(f" {check.id}: ", "bold")
    line.append(printable(check.remedy))
    return Padding(line, (0, 0, 0, 2))


def _last_line(report: Report, console: Console) -> Text:
    line = mark(report.verdict, console)
    line.append(f" · {report.reason or _MEANING[report.verdict]} · exit code {report.exit_code}")
    return line


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

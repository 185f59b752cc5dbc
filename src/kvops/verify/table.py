"""A gate run as a person reads it: one row a check, then what to do about each that did not pass."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvops.verify import words
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
_LIST_BELOW = 100
"""Columns of a terminal under which two columns of prose beside each other cannot be read."""


def show(report: Report, console: Console) -> None:
    """On a terminal as it is drawn; elsewhere without the blanks that fill its lines."""
    if console.is_terminal:
        _print(report, console)
        return
    with console.capture() as drawn:
        _print(report, console)
    console.file.write("\n".join(line.rstrip() for line in drawn.get().split("\n")))
    console.file.flush()


def _print(report: Report, console: Console) -> None:
    title = (words.printable(f"verify {report.profile}"), *words.target(report))
    console.print(Text(" · ".join(title), "bold"))
    if report.checks and console.width >= _LIST_BELOW:
        console.print(_table(report.checks, console))
    elif report.checks:
        console.print(_list(report.checks, console))
    remedies = [c for c in report.checks if c.waived or words.next_step(c)]
    notes = [*words.baseline(report), *words.left_out(report)]
    if remedies or notes:
        console.print()
    for check in remedies:
        console.print(_remedy(check, console))
    for line in notes:
        console.print(Text(line))
    console.print(_last_line(report, console))


def _list(checks: tuple[CheckResult, ...], console: Console) -> Group:
    """For narrow terminals: a line a check, and what was seen under it."""
    lines: list[RenderableType] = []
    for check in checks:
        line = mark(check.verdict, console)
        line.append(f" {words.printable(check.id)}", "bold").append(f"  {words.took(check)}", "dim")
        for remark in _remarks(check):
            line.append(f"  {remark}", "dim")
        lines += [line, Padding(Text(words.observed(check)), (0, 0, 0, 4))]
        if check.verdict != "pass" and check.expected is not None:
            wanted = Text("expected: ", "dim").append(words.expected(check), "not dim")
            lines.append(Padding(wanted, (0, 0, 0, 4)))
    return Group(*lines)


def _remarks(check: CheckResult) -> list[str]:
    said = ["advisory"] if check.severity == "advisory" else []
    return [*said, "waived"] if check.waived else said


def _table(checks: tuple[CheckResult, ...], console: Console) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", expand=True)
    table.add_column("check", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("observed", ratio=3)
    table.add_column("expected", ratio=2)
    table.add_column("took", justify="right", no_wrap=True)
    for check in checks:
        name = Text(words.printable(check.id))
        name.append(f"\n{words.printable(check.title)}", "dim")
        verdict = mark(check.verdict, console)
        for remark in _remarks(check):
            verdict.append(f"\n{remark}", "dim")
        seen, wanted = Text(words.observed(check)), Text(words.expected(check))
        table.add_row(name, verdict, seen, wanted, Text(words.took(check)))
    return table


def _remedy(check: CheckResult, console: Console) -> Padding:
    line = mark(check.verdict, console)
    line.append(f" {words.printable(check.id)}: ", "bold")
    line.append("; ".join(filter(None, (words.next_step(check), words.waiver(check)))))
    return Padding(line, (0, 0, 0, 2))


def _last_line(report: Report, console: Console) -> Text:
    line = mark(report.verdict, console)
    if partial := words.partial(report):
        line.append(f" · {partial}", "bold yellow")
    return line.append(f" · {words.conclusion(report)} · exit code {report.exit_code}")


def mark(verdict: Verdict | RunVerdict, console: Console) -> Text:
    """Glyph and word, so that neither colour nor a Unicode font is needed."""
    glyph, plain, style = _STYLES[verdict]
    wide = console.encoding.lower().startswith("utf")
    return Text(f"{glyph if wide else plain} {verdict}", style)

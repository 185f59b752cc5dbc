"""`kvops verify runs|show|checks|schema`: what was found before, and what is looked for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from kvops.cli.output import report_console

if TYPE_CHECKING:
    from kvops.verify.outputs import Format
    from kvops.verify.result import Report
    from kvops.verify.selection import PlannedCheck

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
File = Annotated[str | None, typer.Option(metavar="FILE", help="Write it there; - for stdout.")]


def named(
    json_file: str | None, junit_file: str | None, html_file: str | None, markdown_file: str | None
) -> dict[Format, str]:
    """Where each report goes that was asked for."""
    given: dict[Format, str | None] = {
        "json": json_file,
        "junit": junit_file,
        "html": html_file,
        "markdown": markdown_file,
    }
    return {kind: where for kind, where in given.items() if where is not None}


def runs(as_json: Json = False) -> None:
    """List the runs that are kept, the latest last.

    What `show`, --resume and --baseline take: an id, the start of one, or `last`.
    """
    from kvops.verify import runs as kept

    found = list(kept.reports())[::-1]
    if as_json:
        typer.echo(json.dumps([_summary(report) for report in found], indent=2))
    elif not found:
        typer.echo("no run is kept; kvops verify makes one")
    else:
        _print_runs(found)


def _summary(report: Report) -> dict[str, object]:
    from kvops.verify import runs as kept

    return {
        "run_id": report.run_id,
        "started_at": report.started_at,
        "profile": report.profile,
        "node": report.target.name,
        "url": report.target.url,
        "model": report.target.model,
        "verdict": report.verdict,
        "exit_code": report.exit_code,
        "partial": report.partial,
        "waivers": len(report.waived),
        "running": kept.is_running(report.run_id),
    }


def _print_runs(found: list[Report]) -> None:
    from kvops.cli.columns import print_table
    from kvops.verify import runs as kept
    from kvops.verify import words

    rows = []
    for report in found:
        verdict: str = "running" if kept.is_running(report.run_id) else report.verdict
        if report.waived:
            verdict += f" ({len(report.waived)} waived)"
        rows.append(
            [
                report.run_id,
                verdict,
                words.printable(report.profile) + (" (part)" if report.left_out else ""),
                words.printable(report.target.name),
                words.printable(report.target.model or "–"),
                words.tally(report.checks) or "–",
            ]
        )
    columns = ["run", "verdict", "profile", "node", "model", "checks"]
    print_table(columns, rows, expendable=["checks", "model", "node"])


def show(
    run: Annotated[
        str, typer.Argument(metavar="[RUN]", help="Id, start of an id, folder or result file.")
    ] = "last",
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write it there; - for stdout.")
    ] = None,
    junit_file: Annotated[
        str | None, typer.Option("--junit", metavar="FILE", help="Write it as JUnit XML.")
    ] = None,
    html_file: Annotated[
        str | None, typer.Option("--html", metavar="FILE", help="Write it as one HTML file.")
    ] = None,
    markdown_file: Annotated[
        str | None, typer.Option("--markdown", metavar="FILE", help="Write it as Markdown.")
    ] = None,
) -> None:
    """Show a run again, or write its reports.

    The latest by default. Exits as its checks say, which is as the run itself did.
    """
    from kvops.verify import outputs, table
    from kvops.verify import runs as kept

    report = kept.find(run)
    wanted = named(json_file, junit_file, html_file, markdown_file)
    outputs.require_places(wanted)
    for error in outputs.deliver(report, wanted):
        raise error
    if outputs.STDOUT not in wanted.values():
        table.show(report, report_console())
    raise typer.Exit(report.exit_code)


def checks(
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="PROFILE", help="Those of a built-in profile or a .yaml file; default: all."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List what the gate looks for, and why.

    Each check with its item of the checklist, its purpose and its thresholds; in a profile also how severe it is.
    """
    from kvops.verify.checks import CHECKS
    from kvops.verify.profile import Entry, load_profile
    from kvops.verify.selection import PlannedCheck, plan

    if profile is None:
        found = [PlannedCheck(c, Entry(id=c.id), c.parameters()) for c in CHECKS]
    else:
        found = plan(load_profile(profile), CHECKS)
    rows = [_described(planned, in_profile=profile is not None) for planned in found]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    for row in rows:
        _print_check(row)


def _described(planned: PlannedCheck, *, in_profile: bool) -> dict[str, object]:
    check, entry = planned.check, planned.entry
    said: dict[str, object] = {
        "id": check.id,
        "title": check.title,
        "purpose": check.purpose,
        "area": check.area,
        "needs": list(check.needs),
        "typical_seconds": check.typical,
        "parameters": planned.parameters.model_dump(mode="json"),
    }
    if in_profile:
        said |= {
            "severity": entry.severity,
            "timeout_seconds": entry.timeout,
            "stop_on_fail": entry.stop_on_fail,
        }
    return said


def _print_check(row: dict[str, object]) -> None:
    import shutil
    import textwrap

    width = max(min(shutil.get_terminal_size().columns, 100), 40)
    marks = [row["area"], row.get("severity"), *_strings(row["needs"], "needs ")]
    typer.echo("  ".join([str(row["id"]), *(str(mark) for mark in marks if mark)]))
    typer.echo(
        textwrap.fill(str(row["purpose"]), width, initial_indent="    ", subsequent_indent="    ")
    )
    parameters = row["parameters"]
    if isinstance(parameters, dict):
        said = ", ".join(f"{name} {_plain(value)}" for name, value in parameters.items())
        typer.echo(textwrap.fill(said, width, initial_indent="    ", subsequent_indent="      "))


def _strings(items: object, prefix: str) -> list[str]:
    return [f"{prefix}{item}" for item in items] if isinstance(items, list) else []


def _plain(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def schema() -> None:
    """Print the JSON Schema of a result."""
    from kvops.verify import result

    typer.echo(result.schema().decode(), nl=False)

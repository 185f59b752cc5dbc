"""`kvops load runs`, `show` and `compare`: what the kept runs found.

Exit codes: `show` 0 passed, 1 failed, 3 inconclusive, 130 interrupted; `compare` 0 no worse, 1 worse, 3 cannot tell;
both 2 usage.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvops.cli.output import report_console
from kvops.errors import UsageError

if TYPE_CHECKING:
    from kvops.load.reports.analysis import Analysis
    from kvops.load.reports.base import RunData
    from kvops.load.reports.compare import RunComparison
    from kvops.load.runs import Run

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Before = typer.Argument(
    metavar="BEFORE", help="The run to hold it against: id, start of an id, or folder."
)
After = typer.Argument(metavar="AFTER", help="The run to judge.")


def list_runs(as_json: Json = False) -> None:
    """The runs that are kept, the latest last: what kvops load show takes."""
    from kvops.load.reports import listing

    found = listing.kept()
    if as_json:
        typer.echo(json.dumps([one.as_json() for one in found], indent=2))
    elif not found:
        typer.echo("no run is kept; kvops load run SCENARIO makes one")
    else:
        from kvops.cli.columns import print_table

        rows = [one.cells() for one in found]
        print_table(listing.COLUMNS, rows, expendable=listing.EXPENDABLE)


def show(
    run_id: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Id, start of an id, or folder.")
    ] = None,
    as_json: Json = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report with its plots.")
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a row for each request.")
    ] = None,
) -> None:
    """Show a run again; the latest by default. Exits as the run itself did."""
    from kvops.load import runs
    from kvops.load.reports import base, csv_export, files, summary

    data = base.read(runs.find(run_id))
    found = summary.analyse(data)
    if files.is_missing(data):  # of a run that plain locust made, or whose kvops was killed
        _keep(data, found)
    if html is not None:
        _export("--html", html, files.page(data, found))
    if csv is not None:
        _export("--csv", csv, csv_export.render(data.records))
    raise typer.Exit(_print(data, found, as_json))


def _export(flag: str, path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise UsageError(
            f"{flag} {path}: {error.strerror}",
            hint="name a file in a folder that can be written to",
        ) from error


def compare(
    before: Annotated[str, Before],
    after: Annotated[str, After],
    as_json: Json = False,
    tolerance: Annotated[
        float,
        typer.Option(min=0.0, max=10.0, help="Share of the median before that a shift may have."),
    ] = 0.10,
    force: Annotated[
        bool, typer.Option("--force", help="Compare runs that were not asked the same, too.")
    ] = False,
) -> None:
    """Compare the run AFTER with the run BEFORE: is any measure worse? Exits with 1 if so."""
    from kvops.load import runs
    from kvops.load.reports import base
    from kvops.load.reports.compare import EXIT_CODES, compare_runs, differences

    made = [runs.find(before), runs.find(after)]
    unlike = differences(made[0].info, made[1].info)
    if made[0].info.scenario != made[1].info.scenario and not force:
        raise UsageError(
            f"two different scenarios: {made[0].info.scenario} and {made[1].info.scenario}",
            hint="compare two runs of one scenario: kvops load runs lists them",
        )
    if unlike and not force:
        raise UsageError(
            f"the runs were not asked the same: {'; '.join(unlike)}",
            hint="compare runs of one scenario with the same options, or --force",
        )
    found = compare_runs(base.read(made[0]), base.read(made[1]), tolerance)
    _print_comparison(found, as_json)
    raise typer.Exit(EXIT_CODES[found.outcome])


def report(made: Run, as_json: bool) -> int:
    """Of a run that has just ended: its reports are shown, and kept in its folder. Returns the exit code."""
    from kvops.load.reports import base, summary

    data = base.read(made)
    found = summary.analyse(data)
    try:
        return _print(data, found, as_json)
    finally:
        _keep(data, found)


def _keep(data: RunData, found: Analysis) -> None:
    from kvops.load.reports import files

    try:
        files.write(data, found)
    except OSError as error:
        typer.echo(f"the reports could not be kept in {data.folder}: {error.strerror}", err=True)


def _print(data: RunData, found: Analysis, as_json: bool) -> int:
    from kvops.load.reports import base, summary

    if as_json:
        typer.echo(json.dumps(summary.told(data, found), indent=2, allow_nan=False))
    else:
        console = report_console()
        console.print(summary.shown(data, found))
        # Whole, however narrow the terminal: it is there to be copied.
        console.print(f"run: {data.folder}", soft_wrap=True, highlight=False, markup=False)
    return 130 if data.info.status == "interrupted" else base.EXIT_CODES[found.verdict.outcome]


def _print_comparison(found: RunComparison, as_json: bool) -> None:
    import msgspec

    from kvops.load.reports.compare_table import render

    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins(found), indent=2, allow_nan=False))
    else:
        report_console().print(render(found))


def register(app: typer.Typer) -> None:
    app.command("runs")(list_runs)
    app.command("show")(show)
    app.command("compare")(compare)

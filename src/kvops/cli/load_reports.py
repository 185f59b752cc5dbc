"""`kvops load runs` and `kvops load show`: what the kept runs found."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from kvops.cli.output import report_console

if TYPE_CHECKING:
    from kvops.load.runs import Run

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def list_runs(as_json: Json = False) -> None:
    """The runs that are kept, the latest last: what kvops load show takes."""
    from kvops.load import runs

    found = [runs.load(folder).info for folder in runs.folders()]
    if as_json:
        rows = [
            {"run": i.run, "scenario": i.scenario, "status": i.status, "started_at": i.started_at}
            for i in found
        ]
        typer.echo(json.dumps(rows, indent=2))
    elif not found:
        typer.echo("no run is kept; kvops load run SCENARIO makes one")
    else:
        for info in found:
            typer.echo(f"{info.run}  {info.status:<11}  {info.model} at {info.target}")


def show(
    run_id: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Id, start of an id, or folder.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a run again; the latest by default. Exits as the run itself did."""
    from kvops.load import runs

    raise typer.Exit(report(runs.find(run_id), as_json))


def report(made: Run, as_json: bool) -> int:
    from kvops.load.reports import base, summary

    data = base.read(made)
    if as_json:
        typer.echo(json.dumps(summary.as_json(data), indent=2, allow_nan=False))
    else:
        console = report_console()
        console.print(summary.render(data))
        # Whole, however narrow the terminal: it is there to be copied.
        console.print(f"run: {made.folder}", soft_wrap=True, highlight=False, markup=False)
    return (
        130 if made.info.status == "interrupted" else base.EXIT_CODES[summary.judge(data).outcome]
    )


def register(app: typer.Typer) -> None:
    app.command("runs")(list_runs)
    app.command("show")(show)

"""`kvops load`: scenarios against a node, one folder a run.

Exit codes of `run`: 0 all as expected, 1 an expectation failed, 2 usage, 3 inconclusive, 4 node unreachable,
130 interrupted with partial results kept.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvops.cli.output import report_console
from kvops.errors import UsageError

if TYPE_CHECKING:
    from kvops.load.launcher import Progress
    from kvops.load.runs import Run

app = typer.Typer(
    no_args_is_help=True, help="Run load and recall scenarios, and show what they found."
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
LINE_EVERY = 5.0


@app.command("list")
def list_scenarios(as_json: Json = False) -> None:
    """The scenarios, what each is for, and its options."""
    from kvops.load import scenarios

    found = [scenarios.find(name) for name in scenarios.names()]
    if as_json:
        typer.echo(
            json.dumps([one.model_dump(mode="json", exclude={"path"}) for one in found], indent=2)
        )
        return
    for one in found:
        typer.echo(f"{one.name}  (users {one.users})")
        typer.echo(_wrapped(one.purpose, 2))
        for name, option in one.options.items():
            default = "off" if option.default is None else _text(option.default)
            typer.echo(f"    --{name.replace('_', '-')}  [default: {default}]")
            typer.echo(_wrapped(f"{option.help}; {option.form()}", 8))


def _wrapped(text: str, indent: int) -> str:
    import shutil
    import textwrap

    width, margin = min(shutil.get_terminal_size().columns, 100), " " * indent
    return textwrap.fill(
        text,
        max(width, 40),
        initial_indent=margin,
        subsequent_indent=margin,
        break_on_hyphens=False,
    )


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog="Each scenario has options of its own: kvops load list.",
)
def run(
    context: typer.Context,
    scenario: Annotated[
        str, typer.Argument(metavar="SCENARIO", help="One of those that kvops load list shows.")
    ],
    node: Annotated[
        str | None,
        typer.Option(
            metavar="NODE",
            help="Name or URL of a node; default: the only one that runs here.",
        ),
    ] = None,
    users: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=10_000, help="Users at once.")
    ] = None,
    duration: Annotated[
        str | None, typer.Option(metavar="TIME", help="End the run after this time, e.g. 60s.")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", help="Of all that is random; default: a new one, recorded."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Make the run's folder in this one; default: the state folder."
        ),
    ] = None,
    allow_remote: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST", help="A host other than this one may be loaded; may be repeated."
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with a key of the data plane.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the admin token.")
    ] = None,
    control_url: Annotated[
        str | None, typer.Option(metavar="URL", help="Control plane, when --node is a URL.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run SCENARIO against a node. The scenario's own options follow as --name value."""
    import secrets

    from kvops.load import launcher, scenarios
    from kvops.telemetry import targets

    chosen = scenarios.find(scenario)
    options = chosen.parse(context.args)
    bound = chosen.duration if duration is None else _seconds(duration)
    target = targets.resolve(
        node, api_key_file=api_key_file, token_file=token_file, control_url=control_url
    )
    launcher.check_target(target.url, allow_remote or ())
    plan = launcher.Plan(
        scenario=chosen,
        target=target,
        options=options,
        users=users or chosen.users,
        duration=bound,
        seed=secrets.randbelow(10**6) if seed is None else seed,
        out=out,
    )
    for note in chosen.notes(options):
        typer.echo(note, err=True)
    with _Display() as display:
        made = launcher.run(plan, display.update)
    raise typer.Exit(_report(made, as_json))


@app.command("runs")
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


@app.command()
def show(
    run_id: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Id, start of an id, or folder.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a run again; the latest by default. Exits as the run itself did."""
    from kvops.load import runs

    raise typer.Exit(_report(runs.find(run_id), as_json))


def _report(made: Run, as_json: bool) -> int:
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


class _Display:
    """The running line: in place on a terminal, elsewhere a line when there is something new. Goes to stderr."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        console = Console(stderr=True)
        self._live = (
            Live("starting", console=console, transient=True) if console.is_terminal else None
        )
        self._last, self._shown, self._told_stopping = time.monotonic(), -1, False

    def __enter__(self) -> _Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, progress: Progress) -> None:
        if self._live is not None:
            self._live.update(_line(progress))
        elif self._is_news(progress):
            self._told_stopping = progress.stopping
            self._last, self._shown = time.monotonic(), len(progress.records)
            typer.echo(_line(progress), err=True)
            sys.stderr.flush()

    def _is_news(self, progress: Progress) -> bool:
        if progress.stopping:
            return not self._told_stopping
        due = time.monotonic() - self._last >= LINE_EVERY
        return due and len(progress.records) != self._shown


def _line(progress: Progress) -> str:
    from kvops.load.launcher import STOP_TIMEOUT
    from kvops.load.reports.cells import seconds
    from kvops.load.statistics import summarize
    from kvops.units import format_duration

    total = summarize(progress.records)
    flight = "" if progress.client is None else f", {progress.client.in_flight} in flight"
    line = f"{format_duration(progress.elapsed)}: {total.requests} requests, {total.failed} failed{flight}"
    if progress.stopping:
        return f"{line}; stopping, those in flight have {STOP_TIMEOUT} s (Ctrl-C again ends them)"
    return f"{line}, first token p50 {seconds(total.ttft.p50, 0.50)}"


def _seconds(text: str) -> float:
    from kvops.units import parse_duration

    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise UsageError(
            f"--duration {text}: {error}", hint="for example --duration 60s"
        ) from error
    if seconds < 1:
        raise UsageError(f"--duration {text}: shorter than 1 s", hint="for example --duration 60s")
    return seconds


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)

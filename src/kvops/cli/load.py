"""`kvops load`: scenarios against a node, one folder a run.

Exit codes of `run`: 0 all as expected, 1 an expectation failed, 2 usage, 3 inconclusive, 4 node unreachable,
130 interrupted with partial results kept.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from kvops.cli.load_progress import Display
from kvops.cli.load_reports import Json, register, report
from kvops.cli.load_signals import stopping
from kvops.cli.load_worker import worker
from kvops.errors import UsageError

app = typer.Typer(
    no_args_is_help=True, help="Run load and recall scenarios, and show what they found."
)


@app.command("list")
def list_scenarios(
    name: Annotated[str | None, typer.Argument(metavar="[SCENARIO]", help="Only this one.")] = None,
    as_json: Json = False,
) -> None:
    """The scenarios, what each is for, and its options."""
    from kvops.load import scenarios

    found = [scenarios.find(one) for one in ([name] if name else scenarios.names())]
    if as_json:
        typer.echo(
            json.dumps([one.model_dump(mode="json", exclude={"path"}) for one in found], indent=2)
        )
        return
    for one in found:
        typer.echo(f"{one.name}  ({one.arrivals})")
        typer.echo(_wrapped(one.purpose, 2))
        for own, option in one.options.items():
            default = "off" if option.default is None else _text(option.default)
            typer.echo(f"    --{own.replace('_', '-')}  [default: {default}]")
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
            help="Name, fleet name or URL of a node; default: the only one that runs here.",
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
    rate: Annotated[
        float | None,
        typer.Option(
            metavar="R",
            help="Open loop: send R requests a second, whatever the answers do; Poisson by default.",
        ),
    ] = None,
    arrivals: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="closed (users wait), constant, poisson, gamma, ramp, burst or trace.",
        ),
    ] = None,
    rate_end: Annotated[
        float | None, typer.Option(metavar="R", help="Of a ramp: the rate at the end.")
    ] = None,
    burstiness: Annotated[
        float | None,
        typer.Option(metavar="B", help="Of gamma arrivals: 1 is Poisson, lower is burstier."),
    ] = None,
    burst_size: Annotated[
        int | None, typer.Option(metavar="N", help="Of bursts: requests sent at once.")
    ] = None,
    burst_every: Annotated[
        str | None, typer.Option(metavar="TIME", help="Of bursts: time from one to the next.")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Replay a CSV with the columns time,input_tokens,output_tokens."
        ),
    ] = None,
    max_in_flight: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Open loop: a request due while N are in flight counts as not sent. Default: 1000.",
        ),
    ] = None,
    processes: Annotated[
        int,
        typer.Option(metavar="N", min=1, max=64, help="Processes of the load generator here."),
    ] = 1,
    workers: Annotated[
        int,
        typer.Option(
            metavar="K", min=0, max=1000, help="Send from K processes of kvops load worker instead."
        ),
    ] = 0,
    bind: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where workers find this run; default: 127.0.0.1:5557. Trusted networks only.",
        ),
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
    fleet: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Names of nodes, and which may be loaded; default: fleet.yaml."
        ),
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

    from kvops.load import launcher, pacing_options, scenarios, targets
    from kvops.load.spread import DEFAULT_BIND, Address
    from kvops.telemetry import fleet as fleets

    chosen = scenarios.find(scenario)
    options = chosen.parse(context.args)
    bound = chosen.duration if duration is None else _seconds(duration)
    pacing = pacing_options.combined(
        chosen, bound, kind=arrivals, rate=rate, rate_end=rate_end, burstiness=burstiness,
        burst_size=burst_size, burst_every=burst_every, trace=trace, max_in_flight=max_in_flight,
    )  # fmt: skip
    if pacing.open and users is not None:
        raise UsageError(
            f"--users {users}: in an open loop the clock sends, not users",
            hint="leave --users out, or ask for --arrivals closed",
        )
    plan = launcher.Plan(
        scenario=chosen,
        target=targets.resolve(
            node,
            fleets.read(fleet),
            api_key_file=api_key_file,
            token_file=token_file,
            control_url=control_url,
        ),
        options=options,
        users=users or chosen.users,
        duration=bound,
        pacing=pacing,
        processes=processes,
        workers=workers,
        bind=Address.parse(bind or DEFAULT_BIND, "--bind"),
        fleet=fleet,
        seed=secrets.randbelow(10**6) if seed is None else seed,
        out=out,
        allow_remote=tuple(allow_remote or ()),
    )
    for note in (*chosen.notes(options), *plan.notes()):
        typer.echo(note, err=True)
    with stopping() as stop, Display() as display:
        made = launcher.run(plan, display.update, stop)
    raise typer.Exit(report(made, as_json))


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


app.command("worker")(worker)
register(app)

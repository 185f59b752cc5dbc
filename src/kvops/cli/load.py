"""`kvops load`: scenarios against a node, one folder a run.

Exit codes of `run`: 0 all as expected, 1 an expectation failed, 2 usage, 3 inconclusive, 4 node unreachable,
130 interrupted with partial results kept.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from kvops.cli.load_options import (
    Arrivals,
    Bind,
    BurstEvery,
    Burstiness,
    BurstSize,
    Duration,
    FleetFile,
    LoadedNode,
    MaxInFlight,
    Out,
    Processes,
    Rate,
    RateEnd,
    Scenario,
    Seed,
    Trace,
    Users,
    Workers,
)
from kvops.cli.load_progress import Display
from kvops.cli.load_reports import Json, register, report
from kvops.cli.load_signals import stopping
from kvops.cli.load_worker import worker
from kvops.cli.options import AllowRemote, ApiKeyFile, ControlUrl, TokenFile
from kvops.errors import UsageError

if TYPE_CHECKING:
    from kvops.load.scenarios import Scenario as Described

app = typer.Typer(
    no_args_is_help=True, help="Run load and recall scenarios, and show what they found."
)


@app.command("list")
def list_scenarios(
    name: Annotated[str | None, typer.Argument(metavar="[SCENARIO]", help="Only this one.")] = None,
    as_json: Json = False,
) -> None:
    """The scenarios and what each is for; with SCENARIO, its options."""
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
    if name is None:
        typer.echo()
        typer.echo(_wrapped("kvops load list SCENARIO shows the options of one.", 0))
    else:
        _echo_options(found[0])


def _echo_options(scenario: Described) -> None:
    for name, option in scenario.options.items():
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
    epilog="Each scenario has options of its own: kvops load list SCENARIO. Those of an open loop, --rate to "
    "--max-in-flight, are for the scenarios that it lists with --rate or --arrivals; the others decide themselves "
    "when to send.",
)
def run(
    context: typer.Context,
    scenario: Scenario,
    node: LoadedNode = None,
    users: Users = None,
    duration: Duration = None,
    seed: Seed = None,
    rate: Rate = None,
    arrivals: Arrivals = None,
    rate_end: RateEnd = None,
    burstiness: Burstiness = None,
    burst_size: BurstSize = None,
    burst_every: BurstEvery = None,
    trace: Trace = None,
    max_in_flight: MaxInFlight = None,
    processes: Processes = 1,
    workers: Workers = 0,
    bind: Bind = None,
    out: Out = None,
    allow_remote: AllowRemote = None,
    api_key_file: ApiKeyFile = None,
    fleet: FleetFile = None,
    token_file: TokenFile = None,
    control_url: ControlUrl = None,
    as_json: Json = False,
) -> None:
    """Run SCENARIO against a node. The scenario's own options follow as --name value."""
    import secrets

    from kvops.load import launcher, pacing_options, scenarios, targets
    from kvops.load.spread import DEFAULT_BIND, Address
    from kvops.telemetry import fleet as fleets

    chosen = scenarios.find(scenario)
    typed = None if duration is None else _seconds(duration)
    pacing = pacing_options.combined(
        chosen, typed or chosen.duration, kind=arrivals, rate=rate, rate_end=rate_end, burstiness=burstiness,
        burst_size=burst_size, burst_every=burst_every, trace=trace, max_in_flight=max_in_flight,
    )  # fmt: skip
    options = chosen.parse(context.args, pacing, _flags(context))
    bound = pacing_options.bound(pacing, chosen, typed)
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
    told = pacing_options.notes(pacing, bound)
    for note in (*chosen.notes(options), *told, *plan.notes()):
        typer.echo(note, err=True)
    with stopping() as stop, Display() as display:
        made = launcher.run(plan, display.update, stop)
    raise typer.Exit(report(made, as_json))


def _flags(context: typer.Context) -> list[str]:
    """Of the command itself."""
    return [flag for one in context.command.params for flag in one.opts if flag.startswith("--")]


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

"""`kvops alerts`: how a node's rules stand, whether anybody is told, silences, and the same rules for Prometheus."""

from __future__ import annotations

import contextlib
import getpass
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvops.cli.local_node import NodeOption
from kvops.units import format_duration

if TYPE_CHECKING:
    from kvops.alerts.sink import Sink

app = typer.Typer(
    no_args_is_help=True, help="Alerts of a node: how its rules stand, and whether anybody is told."
)
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
RuleArgument = Annotated[str, typer.Argument(metavar="RULE", help="Name of a rule.")]
_ORDER = ("firing", "pending", "resolved", "inactive")


@app.callback()
def _group() -> None:
    pass


@app.command("list")
def list_alerts(
    node: NodeOption = None,
    every: Annotated[bool, typer.Option("--all", help="Rules that are inactive, too.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Rules by state, and each channel with its last attempt. Exit code 0 whatever fires."""
    from kvops.cli.local_node import call, find

    record = find(node)
    report = call(record, "GET", "/control/alerts")
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        _print_report(record.name, report, every)


@app.command("test")
def run_drill(
    node: NodeOption = None,
    sink: Annotated[
        bool,
        typer.Option("--sink", help="Also listen here, to see the message arrive."),
    ] = False,
    timeout: Annotated[
        float,
        typer.Option("--timeout", metavar="SECONDS", min=1, max=120, help="Time for all channels."),
    ] = 20.0,
    as_json: JsonOption = False,
) -> None:
    """A drill: a real rule fires, and every channel must take its message in time.

    Exit code 0: each receiver confirmed it (HTTP 2xx, or the service's own yes). 1: one did not, or nobody is to be
    told.
    """
    from kvops.alerts.sink import open_sink
    from kvops.cli.local_node import find
    from kvops.errors import AlertNotDelivered

    record = find(node)
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(open_sink()) if sink else None
        outcome = _drill(record, timeout, listening)
    if as_json:
        typer.echo(json.dumps(outcome, indent=2))
    else:
        _print_drill(outcome)
    failed = [f"{row['channel']}: {row['error']}" for row in outcome["channels"] if row["error"]]
    if failed:
        raise AlertNotDelivered("; ".join(failed))


@app.command()
def silence(
    rule: RuleArgument,
    last: Annotated[
        str,
        typer.Option("--for", metavar="TIME", help="Such as 30m or 2h, at most 30d; 0s ends it."),
    ],
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; others read it.")],
    node: NodeOption = None,
) -> None:
    """Tell nobody of a rule for some time. What still fires then is told then."""
    from kvops.cli.local_node import call, find
    from kvops.errors import UsageError
    from kvops.units import parse_duration

    try:
        seconds = parse_duration(last)
    except ValueError as error:
        raise UsageError(f"--for {last!r}: {error}") from None
    body = {"rule": rule, "seconds": seconds, "reason": reason, "by": getpass.getuser()}
    until = call(find(node), "POST", "/control/alerts/silence", body)["until"]
    typer.echo(
        f"{rule} is no longer silenced"
        if until is None
        else f"{rule} is silenced until {_clock(until)}"
    )


@app.command()
def ack(rule: RuleArgument, node: NodeOption = None) -> None:
    """Say that somebody knows: the alert is not repeated until it has ended."""
    from kvops.cli.local_node import call, find

    body = {"rule": rule, "by": getpass.getuser()}
    call(find(node), "POST", "/control/alerts/ack", body)
    typer.echo(f"{rule} is acknowledged: who was told is not told again until it is over")


@app.command()
def export(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="YAML file of settings.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Default: standard output.")
    ] = None,
) -> None:
    """The rules in force as a rule file for Prometheus. No node need run."""
    from kvops.alerts.export import NODE_DOWN
    from kvops.alerts.export import export as as_prometheus
    from kvops.alerts.rulebook import rulebook
    from kvops.config.load import load_config

    alerts = load_config(config).config.alerts
    rules = rulebook(
        file=alerts.rules_file,
        inline=alerts.rules,
        disabled=alerts.disabled,
        interval=alerts.interval,
    )
    text = as_prometheus(rules)
    if out is None:
        typer.echo(text, nl=False)
    else:
        out.write_text(text)
        typer.echo(
            f"{len(rules)} rules, and {NODE_DOWN['alert']} for a node that is gone, are in {out}"
        )
        typer.echo(f"promtool check rules {out} looks at them")


def _drill(record: Any, timeout: float, sink: Sink | None) -> dict[str, Any]:
    """What the node says of it. With a sink, that one has passed only if it saw the nonce here."""
    from kvops.cli.local_node import call

    body = {"timeout": timeout, "sink": sink.url if sink else None}
    began = time.monotonic()
    outcome = call(record, "POST", "/control/drill", body, patience=timeout + 10)
    if sink is not None:
        at = sink.seen.get(outcome["nonce"])
        row = outcome["channels"][-1]
        row |= {"seen": at is not None, "seconds": None if at is None else at - began}
        if row["error"] is None and at is None:
            row |= {
                "delivered": False,
                "error": "the node says that it sent it, and it is not here",
            }
    outcome["passed"] = all(row["delivered"] for row in outcome["channels"])
    return outcome


def _print_drill(outcome: dict[str, Any]) -> None:
    fired = outcome["fired_after_seconds"]
    when = "did not fire" if fired is None else f"fired after {format_duration(fired)}"
    typer.echo(f"drill {outcome['nonce']}: the rule {when}")
    for row in outcome["channels"]:
        told = (
            f"confirmed after {format_duration(row['seconds'])}"
            if row["delivered"]
            else row["error"]
        )
        typer.echo(f"  {row['channel']:<16} {told}")


def _print_report(name: str, report: dict[str, Any], every: bool) -> None:
    from kvops.cli.columns import print_table

    if not report["enabled"]:
        typer.echo(f"{name}: alerts.enabled is false, no rule is looked at")
        return
    rows = sorted(report["rules"], key=lambda row: _ORDER.index(row["state"]))
    quiet = [row for row in rows if row["state"] == "inactive" and not row["no_data"]]
    shown = rows if every else [row for row in rows if row not in quiet]
    if shown:
        columns = ("rule", "state", "for", "value", "severity", "told")
        print_table(columns, [_cells(row) for row in shown], expendable=("severity", "for"))
    if not every:
        typer.echo(f"{len(quiet)} of {len(rows)} rules are quiet: --all shows them")
    for row in rows:
        if row["silence"]:
            typer.echo(_silence(row["rule"], row["silence"]))
    for channel in report["channels"]:
        typer.echo(f"channel {channel['channel']} ({channel['kind']}): {_last(channel)}")
    if not report["channels"]:
        typer.echo("no channel: nobody is told. Add one under alerts.channels.")


def _silence(rule: str, silence: dict[str, Any]) -> str:
    until = _clock(silence["until"])
    return f"{rule} is silenced until {until} by {silence['by']}: {silence['reason']}"


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    state = "no data" if row["no_data"] and row["state"] == "inactive" else row["state"]
    since = "-" if row["since"] is None else format_duration(max(0.0, time.time() - row["since"]))
    return row["rule"], state, since, row["shown"], row["severity"], _told(row)


def _told(row: dict[str, Any]) -> str:
    """Who was told of what fires: what the channels took, never what was meant to be sent."""
    if row["silence"] and "taken" not in row["told"].values():
        return "no: silenced"
    if row["state"] != "firing":
        return "-"
    known = f"; {row['acknowledged']['by']} knows" if row["acknowledged"] else ""
    return _heard(row) + ("; silenced now" if row["silence"] else "") + known


def _heard(row: dict[str, Any]) -> str:
    """`yes`, `not yet: oncall refused`, or each channel where they differ."""
    told = row["told"]
    if not told:
        return "no channel"
    missing = [f"{channel} {how}" for channel, how in told.items() if how != "taken"]
    if not missing:
        return "yes"
    took = [f"{channel} yes" for channel, how in told.items() if how == "taken"]
    return ", ".join([*took, *missing]) if took else f"not yet: {', '.join(missing)}"


def _last(channel: dict[str, Any]) -> str:
    last, waiting = channel["last"], channel["undelivered"]
    if last is None:
        return "nothing was to be told yet" if not waiting else f"{len(waiting)} messages wait"
    ago = format_duration(max(0.0, time.time() - last["at"]))
    text = f"{last['rule']} {last['status']} {last['outcome']} {ago} ago"
    text += f": {last['error']}" if last["error"] else ""
    return text + (f"; not delivered yet: {', '.join(waiting)}" if waiting else "")


def _clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))

"""`kvops node`: start, look at, drain, resume and stop the nodes of this machine."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvops.cli import node_quarantine
from kvops.cli.local_node import NodeOption, call, find, nothing_runs
from kvops.cli.node_check import check
from kvops.cli.node_logs import logs
from kvops.units import format_duration, format_ratio

if TYPE_CHECKING:
    from kvops.config.load import LoadedConfig
    from kvops.registry import NodeRecord
    from kvops.telemetry.snapshot import NodeSnapshot

_END_SECONDS = 30.0
"""What an end may take beyond the drain."""

app = typer.Typer(no_args_is_help=True, help="Start, watch and stop the nodes of this machine.")

app.command("check")(check)
app.command("logs")(logs)
app.add_typer(node_quarantine.app, name="quarantine")


@app.callback()
def _group() -> None:
    pass


@app.command()
def start(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="YAML file of settings.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME|PATH", help="Name of a pulled model, or a path."),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Name of the node.")
    ] = None,
    host: Annotated[
        str | None, typer.Option("--host", metavar="ADDRESS", help="Address of the data plane.")
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", metavar="PORT", help="Data plane port; 0 picks one.")
    ] = None,
    control_port: Annotated[
        int | None,
        typer.Option("--control-port", metavar="PORT", help="Control plane port; 0 picks one."),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Run behind, return when ready.")
    ] = False,
) -> None:
    """Serve a model until Ctrl-C, SIGTERM or `kvops node stop`."""
    from kvops.config.load import load_config

    overrides = {
        "name": name,
        "model.name": model,
        "server.host": host,
        "server.port": port,
        "server.control_port": control_port,
    }
    loaded = load_config(config, overrides)
    if detach:
        from kvops.cli.detach import start_detached

        start_detached(loaded.config.name, config, overrides)
    else:
        _run_here(loaded)


def _run_here(loaded: LoadedConfig) -> None:
    from kvops.node.daemon import run_node
    from kvops.node.ending import ends_in_time

    began = time.monotonic()

    def report(step: str, detail: str) -> None:
        by_hand = ", or Ctrl-C here" if step == "ready" and sys.stdout.isatty() else ""
        typer.echo(f"{time.monotonic() - began:7.1f} s  {step:<18} {detail}{by_hand}")

    typer.echo(f"kvops node {loaded.config.name}: {loaded.config.model.name}")
    with ends_in_time():
        run_node(loaded, report)
        report("stopped", "")


@app.command()
def status(
    node: NodeOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """The nodes of this machine. Exit code 4 when there is none."""
    from kvops import registry

    records = registry.running() if node is None else [find(node)]
    if not records:
        raise nothing_runs("no node runs on this machine")
    rows = [_row(record) for record in records]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    else:
        _print_table(rows)


@app.command()
def stop(
    node: NodeOption = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            min=0.1,
            help="Time to wait for the end; default: what the node gives its requests, and 30 s.",
        ),
    ] = None,
) -> None:
    """Drain a node and wait until its process is gone."""
    from kvops.errors import NodeError

    record = find(node)
    timeout = timeout or _drain_timeout(record) + _END_SECONDS
    call(record, "POST", "/control/shutdown")
    deadline = time.monotonic() + timeout
    while record.alive():
        if time.monotonic() > deadline:
            raise NodeError(
                f"{record.name} (pid {record.pid}) has not ended after {timeout:g} s",
                hint=f"kill {record.pid} ends it without waiting for requests in flight",
            )
        time.sleep(0.05)
    typer.echo(f"{record.name} stopped")


@app.command()
def drain(node: NodeOption = None) -> None:
    """Take no new requests; those in flight go on."""
    record = find(node)
    answer = call(record, "POST", "/control/drain")
    typer.echo(f"{record.name} is draining, {answer['in_flight']} requests in flight")
    named = f"--node {record.name}"
    typer.echo(
        f"  next: kvops node resume {named} takes requests again, kvops node stop {named} ends it"
    )


@app.command()
def resume(node: NodeOption = None) -> None:
    """Take requests again."""
    record = find(node)
    typer.echo(f"{record.name} is {call(record, 'POST', '/control/resume')['state']}")


def _drain_timeout(record: NodeRecord) -> float:
    """Seconds; that of a node which does not say is the usual one."""
    from kvops.errors import KvopsError

    try:
        return float(call(record, "GET", "/control/config")["config"]["runtime"]["drain_timeout"])
    except (KvopsError, LookupError, TypeError, ValueError):
        return 30.0


def _row(record: NodeRecord) -> dict[str, Any]:
    from kvops.errors import KvopsError

    known = {"name": record.name, "pid": record.pid, "url": record.url, "model": record.model}
    known["control_url"] = record.control_url
    try:
        figures = _figures(_snapshot(record))
        changed = call(record, "GET", "/control/config").get("restart_needed", ())
    except KvopsError as error:
        return known | {"state": "unreachable", "reason": error.message}
    return known | figures | {"restart_needed": [row["key"] for row in changed]}


def _snapshot(record: NodeRecord) -> NodeSnapshot:
    from kvops.telemetry.snapshot import decode_snapshot

    return decode_snapshot(json.dumps(call(record, "GET", "/control/snapshot")).encode())


def _figures(snapshot: NodeSnapshot) -> dict[str, Any]:
    """What is not known is None."""
    from kvops.telemetry.snapshot import Known

    queue = snapshot.queue.value if isinstance(snapshot.queue, Known) else None
    kv = snapshot.kv.value if isinstance(snapshot.kv, Known) else None
    uptime = snapshot.uptime_seconds
    return {
        "state": snapshot.state,
        "reason": snapshot.state_reason,
        "running": queue.running if queue else None,
        "waiting": queue.waiting if queue else None,
        "kv_usage_ratio": kv.usage_ratio if kv else None,
        "uptime_seconds": uptime.value if isinstance(uptime, Known) else None,
    }


def _print_table(rows: list[dict[str, Any]]) -> None:
    from kvops.cli.columns import print_table

    columns = ("name", "state", "url", "model", "run/wait", "kv", "up")
    print_table(columns, [_cells(row) for row in rows], expendable=columns[:1:-1])
    for row in rows:
        for remark in _remarks(row):
            typer.echo(f"{row['name']}: {remark}")


def _remarks(row: dict[str, Any]) -> Iterator[str]:
    """What the columns do not say of a node."""
    if row["reason"]:
        yield row["reason"]
    if keys := row.get("restart_needed"):
        yield (
            f"its next start changes {', '.join(keys)}: kvops config show --node {row['name']} says what is in force"
        )


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    used, up = row.get("kv_usage_ratio"), row.get("uptime_seconds")
    return (
        row["name"],
        row["state"],
        row["url"],
        row["model"],
        f"{_shown(row.get('running'))}/{_shown(row.get('waiting'))}",
        "-" if used is None else format_ratio(used),
        "-" if up is None else format_duration(up),
    )


def _shown(value: int | None) -> str:
    return "-" if value is None else str(value)

"""`kvops verify`: run a profile of checks against a node and exit with the verdict."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console
from rich.status import Status

from kvops import paths
from kvops.errors import UsageError
from kvops.telemetry import targets
from kvops.telemetry.clients.kvops import KvopsClient
from kvops.telemetry.targets import Target
from kvops.verify import result, runner
from kvops.verify.checks import CHECKS
from kvops.verify.profile import PlannedCheck, load_profile, plan
from kvops.verify.result import Report
from kvops.verify.table import show


def verify(
    node: str | None = typer.Option(
        None, "--node", metavar="T", help="Node name or URL; default: the only local node."
    ),
    profile: str = typer.Option(
        "smoke", "--profile", metavar="P", help="A built-in profile or a .yaml file."
    ),
    only: list[str] = typer.Option(
        [], "--only", metavar="ID", help="Run only this check; may be repeated."
    ),
    skip: list[str] = typer.Option(
        [], "--skip", metavar="ID", help="Leave this check out; may be repeated."
    ),
    json_file: str | None = typer.Option(
        None, "--json", metavar="FILE", help="Write the result there; - for stdout."
    ),
    api_key_file: Path | None = typer.Option(
        None, "--api-key-file", metavar="FILE", help="API key of the data plane."
    ),
    token_file: Path | None = typer.Option(
        None, "--token-file", metavar="FILE", help="Admin token of the control plane."
    ),
    control_url: str | None = typer.Option(
        None, "--control-url", metavar="URL", help="Control plane of a node given by URL."
    ),
) -> None:
    """Check that a node does what it was promised to do.

    Exit codes: 0 all required checks passed, 1 one failed, 2 usage or configuration, 3 inconclusive,
    4 node unreachable, 130 interrupted.
    """
    chosen = load_profile(profile)
    checks = plan(chosen, CHECKS, only, skip)
    target = targets.resolve(
        node, api_key_file=api_key_file, token_file=token_file, control_url=control_url
    )
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    console = Console(stderr=json_file == "-")
    report = asyncio.run(_run(target, chosen.name, checks, Console(stderr=True)))
    saved = result.save(report)
    if json_file is not None:
        _write_json(json_file, result.encode(report))
    show(report, console)
    console.print(f"result: {saved}", style="dim", soft_wrap=True, highlight=False, markup=False)
    raise typer.Exit(report.exit_code)


async def _run(
    target: Target, profile: str, checks: Sequence[PlannedCheck], console: Console
) -> Report:
    """SIGTERM ends the run as Ctrl-C does: with what has been seen so far."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    node = KvopsClient(target) if target.control_url else None
    try:
        with console.status("asking the node about itself") as status:
            return await runner.run(target, node, profile, checks, _progress(status, len(checks)))
    finally:
        if node is not None:
            await node.aclose()


def _progress(status: Status, count: int) -> runner.Progress:
    def show_next(index: int, planned: PlannedCheck) -> None:
        status.update(f"{index + 1}/{count} {planned.check.id}: {planned.check.title.lower()}")

    return show_next


def _write_json(where: str, data: bytes) -> None:
    if where == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    try:
        paths.write_atomic(Path(where), data, mode=0o644)
    except OSError as error:
        raise UsageError(
            f"cannot write {where}: {error.strerror}", hint="name another --json file"
        ) from None

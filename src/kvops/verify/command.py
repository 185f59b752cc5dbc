"""From a target and a profile to a result on disk, on the terminal and as an exit code.

Apart from `kvops.cli.verify` so that `kvops --help` does not load any of this.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.status import Status

from kvops import paths
from kvops.errors import UsageError
from kvops.telemetry.clients.kvops import KvopsClient
from kvops.telemetry.targets import Target
from kvops.verify import result, runner
from kvops.verify.checks import CHECKS
from kvops.verify.profile import PlannedCheck, Profile, load_profile, plan
from kvops.verify.result import Report
from kvops.verify.table import show


def planned(
    profile: str, only: Sequence[str], skip: Sequence[str]
) -> tuple[Profile, list[PlannedCheck]]:
    """Raises UsageError, ConfigError before anything is sent to a node."""
    chosen = load_profile(profile)
    return chosen, plan(chosen, CHECKS, only, skip)


def gate(
    target: Target, profile: Profile, checks: Sequence[PlannedCheck], json_file: str | None
) -> int:
    """Run the checks, save the result, show it; the exit code. `json_file` may be `-` for stdout."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    console = Console(stderr=json_file == "-")
    report = asyncio.run(_run(target, profile.name, checks, Console(stderr=True)))
    saved = result.save(report)
    if json_file is not None:
        _write_json(json_file, result.encode(report))
    show(report, console)
    console.print(f"result: {saved}", style="dim", soft_wrap=True, highlight=False, markup=False)
    return report.exit_code


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

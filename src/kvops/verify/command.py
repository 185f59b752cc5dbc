"""From a target and a profile to a result on disk, on the terminal and as an exit code.

Apart from `kvops.cli.verify` so that `kvops --help` does not load any of this.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.status import Status
from rich.text import Text

from kvops import paths
from kvops.errors import UsageError
from kvops.telemetry.clients.kvops import KvopsClient
from kvops.telemetry.targets import Target
from kvops.units import format_duration
from kvops.verify import result, runner
from kvops.verify.checks import CHECKS
from kvops.verify.profile import PlannedCheck, Profile, left_out, load_profile, plan
from kvops.verify.result import CheckResult, Report
from kvops.verify.table import mark, show


@dataclass(frozen=True)
class Plan:
    profile: Profile
    checks: list[PlannedCheck]
    left_out: runner.LeftOut


def planned(profile: str, only: Sequence[str], skip: Sequence[str]) -> Plan:
    """Raises UsageError, ConfigError before anything is sent to a node."""
    chosen = load_profile(profile)
    return Plan(chosen, plan(chosen, CHECKS, only, skip), left_out(chosen, only, skip))


def require_writable(json_file: str | None) -> None:
    """Raises UsageError before anything is sent to a node, when its results would have no place."""
    if json_file not in (None, "-"):
        file = Path(str(json_file))
        if file.is_dir():
            raise UsageError(f"--json {file} is a folder", hint="name a file in it")
        if not file.parent.is_dir():
            raise UsageError(
                f"--json {file}: there is no folder {file.parent}",
                hint="make it, or name a file in one that exists; - is stdout",
            )
        if not os.access(file.parent, os.W_OK):
            raise UsageError(
                f"--json {file}: the folder {file.parent} cannot be written to",
                hint="name another file; - is stdout",
            )
    try:
        paths.make_private(paths.runs_dir())
    except OSError as error:
        raise UsageError(
            f"results are kept in {paths.runs_dir()}, and that cannot be made: {error.strerror}",
            hint="set KVOPS_HOME to a folder that can be written to",
        ) from None


def gate(target: Target, plan: Plan, json_file: str | None, console: Console) -> int:
    """Run the checks, save the result, show it; the exit code. `json_file` may be `-` for stdout."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    report = asyncio.run(_run(target, plan, Console(stderr=True)))
    saved = _save(report)
    if json_file is not None:
        _write_json(json_file, result.encode(report))
    show(report, console)
    console.print(f"result: {saved}", style="dim", soft_wrap=True, highlight=False, markup=False)
    return report.exit_code


def _save(report: Report) -> str:
    """Where it is; a full disk takes the file, not what was seen and the exit code that says it."""
    try:
        return str(result.save(report))
    except OSError as error:
        return f"not saved: {error.strerror or error}"


async def _run(target: Target, plan: Plan, console: Console) -> Report:
    """SIGTERM ends the run as Ctrl-C does: with what has been seen so far."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    node = KvopsClient(target) if target.control_url else None
    try:
        with console.status("asking the node about itself") as status:
            shown = _display(status, console, len(plan.checks))
            return await runner.run(
                target,
                node,
                plan.profile.name,
                plan.checks,
                shown.begun,
                shown.ended,
                plan.left_out,
            )
    finally:
        if node is not None:
            await node.aclose()


class _Display(Protocol):
    """Where a run stands, on stderr."""

    def begun(self, index: int, planned: PlannedCheck) -> None: ...

    def ended(self, index: int, result: CheckResult) -> None: ...


def _display(status: Status, console: Console, count: int) -> _Display:
    return _InPlace(status, count) if console.is_terminal else _Lines(console, count)


class _InPlace:
    def __init__(self, status: Status, count: int) -> None:
        self._status, self._count = status, count

    def begun(self, index: int, planned: PlannedCheck) -> None:
        check = planned.check
        self._status.update(f"{index + 1}/{self._count} {check.id}: {check.title.lower()}")

    def ended(self, index: int, result: CheckResult) -> None:
        pass


class _Lines:
    """Where nothing can be drawn over, a line a check as it ends."""

    def __init__(self, console: Console, count: int) -> None:
        self._console, self._count = console, count
        console.print(f"asking the node, then {count} checks …", highlight=False)

    def begun(self, index: int, planned: PlannedCheck) -> None:
        pass

    def ended(self, index: int, result: CheckResult) -> None:
        line = Text(f"{index + 1:>{len(str(self._count))}}/{self._count} ")
        line.append(mark(result.verdict, self._console)).append(f"  {result.id}")
        if result.n:
            line.append(f"  {format_duration(result.took_seconds)}")
        self._console.print(line, soft_wrap=True)


def _write_json(where: str, data: bytes) -> None:
    if where == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    try:
        paths.write_atomic(Path(where), data, mode=0o644)
    except OSError as error:
        raise UsageError(
            f"--json {where} cannot be written: {error.strerror}",
            hint="name another file; - is stdout",
        ) from None

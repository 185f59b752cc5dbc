"""The locust process of a run: how it is started, what it is told, how it is ended, and what its end means."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from kvops.errors import LoadRunError
from kvops.load import endings, runs
from kvops.load.spread import Address, Spread, joins
from kvops.telemetry.targets import Target

STOP_TIMEOUT = 10
"""Seconds that requests in flight have when a run ends; then they are recorded as cancelled."""
KILL_AFTER = STOP_TIMEOUT + 10
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)\b: .+$", re.MULTILINE)
"""Last line of a traceback."""
_PLACE = re.compile(r'File "(.+)", line (\d+)')


class Handover(msgspec.Struct, kw_only=True):
    """What the locust process is told beside its arguments. Credentials are not in it."""

    folder: str = ""
    """Of the run; empty in a worker on another machine than the master's."""
    parent: int
    """Process id of kvops: when it is gone, the run ends."""
    allow_remote: tuple[str, ...] = ()
    """Hosts other than this one that a worker may be pointed at by its master."""


HANDOVER = "KVOPS_LOAD"
"""Environment variable that holds the JSON of a Handover."""


class Locust:
    """Started with the object. Raises LoadRunError when it cannot be."""

    def __init__(
        self, arguments: list[str], folder: Path, handover: Handover, target: Target
    ) -> None:
        self._log, self._asked_at = folder / runs.LOG_FILE, float("inf")
        with self._log.open("wb") as log:
            self._process = _start(arguments, folder, _environment(handover, target), log.fileno())

    def running(self) -> bool:
        return self._process.poll() is None

    def ask_to_stop(self) -> None:
        """Its requests in flight have STOP_TIMEOUT."""
        self._process.terminate()
        self._asked_at = time.monotonic()

    def overdue(self) -> bool:
        return time.monotonic() - self._asked_at > KILL_AFTER

    def end(self) -> None:
        if self.running():
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def status(self) -> tuple[runs.Status, str]:
        """What its end means for the run."""
        code = self._process.returncode
        if code == 0:
            return "finished", ""
        log = self._log.read_text(errors="replace")
        return "failed", endings.reason(code, log) or f"locust ended with {code}: {_raised(log)}"


def _raised(log: str) -> str:
    """The last exception of a log, and the line of our own code or of the scenario that it came from."""
    found = list(_EXCEPTION.finditer(log))
    if not found:
        return "see its log"
    places = [
        f" ({Path(file).name}, line {line})"
        for file, line in _PLACE.findall(log, 0, found[-1].start())
        if "site-packages" not in file and not file.startswith("<")
    ]
    return found[-1][0][:300] + (places[-1] if places else "")


def run_arguments(info: runs.RunInfo, scenario: Path, spread: Spread) -> list[str]:
    arguments = [
        "-f", str(scenario), "--headless", "--only-summary",
        "--host", info.target, "--users", str(info.users), "--spawn-rate", str(info.users),
        "--stop-timeout", str(STOP_TIMEOUT), "--exit-code-on-error", "0", "--loglevel", "INFO",
        *spread.arguments(),
    ]  # fmt: skip
    # An open loop ends with its schedule, and then waits for the answers.
    if info.duration is not None and not info.pacing.open:
        arguments += ["--run-time", f"{max(1, round(info.duration))}s"]
    return arguments


def worker_arguments(scenario: Path, master: Address, processes: int) -> list[str]:
    several = ["--processes", str(processes)] if processes > 1 else []
    return ["-f", str(scenario), "--worker", "--loglevel", "INFO", *joins(master), *several]


def _start(
    arguments: list[str], folder: Path, environment: dict[str, str], log: int
) -> subprocess.Popen[bytes]:
    try:
        # In the run folder no stray locust.conf or pyproject.toml is read; in a group of its own no Ctrl-C reaches it.
        return subprocess.Popen(
            [sys.executable, "-m", "locust", *arguments], cwd=folder, env=environment,
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise LoadRunError(
            f"cannot start locust: {error}", hint="is kvops installed whole?"
        ) from error


def _environment(handover: Handover, target: Target) -> dict[str, str]:
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("LOCUST_", "KVOPS_"))
    }
    home = os.environ.get("KVOPS_HOME")
    passed = {
        "KVOPS_HOME": home and str(Path(home).expanduser().absolute()),
        "KVOPS_API_KEY": target.api_key,
        "KVOPS_ADMIN_TOKEN": target.token,
        "KVOPS_CONTROL_URL": target.control_url,
    }
    ours = {"PYTHONUNBUFFERED": "1", HANDOVER: msgspec.json.encode(handover).decode()}
    return inherited | ours | {name: value for name, value in passed.items() if value}

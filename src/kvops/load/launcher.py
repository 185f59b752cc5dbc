"""Runs a scenario as a locust subprocess and follows it through the JSON lines on disk.

Credentials travel in the environment, never in the arguments. Whatever happens, the run folder is finished with
the status it deserves and every line written so far is kept.
"""

from __future__ import annotations

import ipaddress
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

import msgspec

from kvops.errors import LoadRunError, UsageError
from kvops.load import node_view, runs
from kvops.load.endpoint import discover
from kvops.load.records import CLIENT_FILE, REQUESTS_FILE, ClientSample, RequestRecord, Tail
from kvops.load.scenarios import Scenario
from kvops.telemetry.targets import Target

STOP_TIMEOUT = 10
"""Seconds that requests in flight have when a run ends; then they are recorded as cancelled."""
KILL_AFTER = STOP_TIMEOUT + 10
POLL = 0.2
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*: .+$", re.MULTILINE)
"""Last line of a traceback."""


class Handover(msgspec.Struct, kw_only=True):
    """What the locust process is told beside its arguments. Credentials are not in it."""

    folder: str
    parent: int
    """Process id of kvops: when it is gone, the run ends."""


HANDOVER = "KVOPS_LOAD"
"""Environment variable that holds the JSON of a Handover."""


class Progress(msgspec.Struct):
    """What is known while the run goes on."""

    elapsed: float = 0.0
    records: list[RequestRecord] = []
    client: ClientSample | None = None
    stopping: bool = False
    """The user ended the run, and requests in flight have STOP_TIMEOUT."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    scenario: Scenario
    target: Target
    options: dict[str, Any]
    users: int
    duration: float | None
    seed: int
    out: Path | None = None


def check_target(url: str, allowed_remote: Collection[str]) -> None:
    """Raises UsageError for a host that is neither this machine nor named by `allowed_remote`."""
    host = urlsplit(url).hostname or ""
    if host not in allowed_remote and not _is_loopback(host):
        raise UsageError(
            f"{host} is not this machine, and a load run can bring a node down",
            hint=f"if you mean it: --allow-remote {host}",
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def run(plan: Plan, on_progress: Callable[[Progress], None]) -> runs.Run:
    """Run to the end, to `duration`, or to an interrupt; the run's status says which.

    Raises NodeUnreachable, NodeUnauthorized, NodeProtocolError, UsageError, LoadRunError.
    """
    if plan.users > plan.scenario.max_users:
        raise UsageError(
            f"--users {plan.users}: {plan.scenario.name} takes at most {plan.scenario.max_users}",
            hint="leave --users out",
        )
    made = _prepare(plan)
    try:
        with _interruptible():
            status, reason = _follow(made, plan, on_progress)
    except BaseException:
        made.finish("failed", "kvops itself failed")
        raise
    made.info.after = node_view.snapshot(plan.target.control_url, plan.target.token)
    made.finish(status, reason)
    return made


def _prepare(plan: Plan) -> runs.Run:
    endpoint = discover(plan.target.url, plan.target.api_key)
    plan.scenario.check_context(plan.options, endpoint.max_model_len)
    now = time.time()
    info = runs.RunInfo(
        run=runs.new_id(plan.scenario.name, now),
        scenario=plan.scenario.name,
        report=plan.scenario.report,
        options=plan.options,
        users=plan.users,
        duration=plan.duration,
        seed=plan.seed,
        target=runs.without_credentials(plan.target.url),
        model=endpoint.model,
        max_model_len=endpoint.max_model_len,
        before=node_view.snapshot(plan.target.control_url, plan.target.token),
        started_at=now,
    )
    return runs.create(info, plan.out)


def _follow(
    made: runs.Run, plan: Plan, on_progress: Callable[[Progress], None]
) -> tuple[runs.Status, str]:
    follow = _Follower(made, on_progress)
    with (made.folder / runs.LOG_FILE).open("wb") as log:
        process = _start(made, plan, log.fileno())
    try:
        while process.poll() is None:
            follow.look()
            time.sleep(POLL)
    except KeyboardInterrupt:
        follow.tell_stopping()
        _stop(process)
        return "interrupted", "interrupted by the user"
    finally:
        _end(process)
        follow.look()
    return _status(process.returncode, made.folder)


class _Follower:
    """Reads what the run has written since the last look and passes it on."""

    def __init__(self, made: runs.Run, on_progress: Callable[[Progress], None]) -> None:
        self._started, self._on_progress = made.info.started_at, on_progress
        self._requests = Tail(made.folder / REQUESTS_FILE, RequestRecord)
        self._client = Tail(made.folder / CLIENT_FILE, ClientSample)
        self._progress = Progress()

    def tell_stopping(self) -> None:
        self._progress.stopping = True
        self.look()

    def look(self) -> None:
        self._progress.records += self._requests.new()
        self._progress.client = next(iter(self._client.new()[-1:]), self._progress.client)
        self._progress.elapsed = time.time() - self._started
        self._on_progress(self._progress)


def _start(made: runs.Run, plan: Plan, log: int) -> subprocess.Popen[bytes]:
    command = [
        sys.executable, "-m", "locust", "-f", str(plan.scenario.path), "--headless", "--only-summary",
        "--host", made.info.target, "--users", str(plan.users), "--spawn-rate", str(plan.users),
        "--stop-timeout", str(STOP_TIMEOUT), "--exit-code-on-error", "0", "--loglevel", "INFO",
    ]  # fmt: skip
    if plan.duration is not None:
        command += ["--run-time", f"{max(1, round(plan.duration))}s"]
    try:
        # In the run folder no stray locust.conf or pyproject.toml is read; in a group of its own no Ctrl-C reaches it.
        return subprocess.Popen(
            command, cwd=made.folder, env=_environment(made, plan.target), stdin=subprocess.DEVNULL,
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise LoadRunError(
            f"cannot start locust: {error}", hint="is kvops installed whole?"
        ) from error


def _environment(made: runs.Run, target: Target) -> dict[str, str]:
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("LOCUST_", "KVOPS_"))
    }
    handover = Handover(folder=str(made.folder), parent=os.getpid())
    secrets = {
        "KVOPS_API_KEY": target.api_key,
        "KVOPS_ADMIN_TOKEN": target.token,
        "KVOPS_CONTROL_URL": target.control_url,
    }
    ours = {"PYTHONUNBUFFERED": "1", HANDOVER: msgspec.json.encode(handover).decode()}
    return inherited | ours | {name: value for name, value in secrets.items() if value}


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask locust to end; its requests in flight have STOP_TIMEOUT. A second interrupt ends it at once."""
    process.terminate()
    try:
        process.wait(KILL_AFTER)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _status(returncode: int, folder: Path) -> tuple[runs.Status, str]:
    if returncode == 0:
        return "finished", ""
    log = (folder / runs.LOG_FILE).read_text(errors="replace")
    raised = _EXCEPTION.findall(log)
    return (
        "failed",
        f"locust ended with {returncode}: {raised[-1][:300] if raised else 'see its log'}",
    )


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

"""Runs a scenario as a locust subprocess and follows it through the JSON lines on disk.

Credentials travel in the environment, never in the arguments. Whatever happens, the run folder is finished with
the status it deserves and every line written so far is kept. Signals are the caller's business.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from kvops.errors import UsageError
from kvops.load import fits, inputs, node_view, pacing, pacing_options, runs
from kvops.load.endpoint import discover
from kvops.load.follower import Follower, Progress
from kvops.load.pacing import Pacing
from kvops.load.process import STOP_TIMEOUT, Handover, Locust, run_arguments
from kvops.load.scenarios import Scenario
from kvops.load.spread import Address, Spread
from kvops.load.targets import check_target
from kvops.telemetry import fleet
from kvops.telemetry.targets import Target

__all__ = ["STOP_TIMEOUT", "Plan", "Progress", "check_target", "run"]

POLL = 0.2


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    scenario: Scenario
    target: Target
    options: dict[str, Any]
    users: int
    """Of a closed loop; in an open one a driver for each process takes their place."""
    duration: float | None
    seed: int
    out: Path | None = None
    pacing: Pacing = Pacing()
    processes: int = 1
    """Of the load generator, on this machine."""
    workers: int = 0
    """Processes of `kvops load worker` that send instead; 0: none."""
    bind: Address = Spread().bind
    """Where those find the master."""
    allow_remote: tuple[str, ...] = ()
    """Hosts other than this one that may be loaded."""
    fleet: Path | None = None
    """File that says which nodes may be; None: the usual one, if it is there."""

    @property
    def spread(self) -> Spread:
        return Spread(processes=self.processes, workers=self.workers, bind=self.bind)

    def notes(self) -> list[str]:
        """What a user should do or know before the run."""
        if not self.workers:
            return []
        everywhere = self.bind.host in ("0.0.0.0", "::")
        place = f"{'THIS-MACHINE' if everywhere else self.bind.host}:{self.bind.port}"
        alike = inputs.shared(self.scenario, self.options, self.pacing)
        keys = inputs.own(self.scenario, self.options)
        return [
            *(f"each worker's machine needs this file at the same path: {path}" for path in alike),
            *(f"each worker's machine needs keys of its own at this path: {path}" for path in keys),
            f"waiting for {self.workers} workers: kvops load worker {self.scenario.name} --master {place}",
        ]


def run(plan: Plan, on_progress: Callable[[Progress], None], stop: threading.Event) -> runs.Run:
    """Run to the end, to `duration`, or until `stop` is set; the run's status says which.

    Requests in flight at the end have STOP_TIMEOUT seconds. A KeyboardInterrupt ends them at once.
    Raises NodeUnreachable, NodeUnauthorized, NodeProtocolError, UsageError, LoadRunError.
    """
    _check(plan)
    made = _prepare(plan)
    try:
        status, reason = _follow(made, plan, on_progress, stop)
        made.info.after = node_view.snapshot(plan.target.control_url, plan.target.token)
        made.finish(status, reason)
    except BaseException:
        made.finish("failed", "kvops itself failed")
        raise
    return made


def _check(plan: Plan) -> None:
    """Raises UsageError, ConfigError."""
    check_target(plan.target.url, plan.allow_remote, fleet.read(plan.fleet))
    if plan.users > plan.scenario.max_users:
        raise UsageError(
            f"--users {plan.users}: {plan.scenario.name} takes at most {plan.scenario.max_users}",
            hint="leave --users out",
        )
    _check_senders(plan)
    pacing_options.check_taken(plan.scenario, plan.pacing)
    pacing.check(plan.pacing, plan.duration)


def _check_senders(plan: Plan) -> None:
    """Raises UsageError for processes that cannot all take part."""
    if plan.workers and plan.processes > 1:
        raise UsageError(
            f"--workers {plan.workers}: this machine then sends nothing itself",
            hint="give --processes to kvops load worker",
        )
    senders, most = plan.spread.senders, min(plan.scenario.max_processes, plan.scenario.max_users)
    flag = "--workers" if plan.workers else "--processes"
    if senders > most:
        several = "one process" if most == 1 else f"at most {most} processes"
        raise UsageError(
            f"{flag} {senders}: {plan.scenario.name} sends from {several}",
            hint=f"leave {flag} out" if most == 1 else f"{flag} {most}",
        )
    if senders > plan.users and not plan.pacing.open:
        raise UsageError(
            f"{flag} {senders}: there are only {plan.users} users to share",
            hint=f"more users: --users {senders}",
        )


def _prepare(plan: Plan) -> runs.Run:
    endpoint = discover(plan.target.url, plan.target.api_key)
    fits.check(plan.scenario, plan.options, plan.seed, endpoint)
    now = time.time()
    info = runs.RunInfo(
        run=runs.new_id(plan.scenario.name, now),
        scenario=plan.scenario.name,
        report=plan.scenario.report,
        options=plan.options,
        users=plan.spread.senders if plan.pacing.open else plan.users,
        duration=plan.duration,
        pacing=plan.pacing,
        inputs=inputs.digests(plan.scenario, plan.options, plan.pacing),
        processes=plan.spread.senders,
        seed=plan.seed,
        target=runs.without_credentials(plan.target.url),
        model=endpoint.model,
        max_model_len=endpoint.max_model_len,
        before=node_view.snapshot(plan.target.control_url, plan.target.token),
        started_at=now,
    )
    return runs.create(info, plan.out)


def _closed(locust: Locust, follower: Follower) -> bool:
    """False where one more Ctrl-C came in between: what the run has is not to be lost by it."""
    try:
        locust.end()
        follower.look()
    except KeyboardInterrupt:
        return False
    return True


def _follow(
    made: runs.Run, plan: Plan, on_progress: Callable[[Progress], None], stop: threading.Event
) -> tuple[runs.Status, str]:
    follower = Follower(made, on_progress)
    locust = Locust(
        run_arguments(made.info, plan.scenario.path, plan.spread),
        made.folder,
        Handover(folder=str(made.folder), parent=os.getpid()),
        plan.target,
    )
    try:
        while locust.running() and not stop.is_set():
            follower.look()
            time.sleep(
                POLL
            )  # no wait for `stop`: a signal handler may set it only while nobody holds it
        if stop.is_set():
            locust.ask_to_stop()
            follower.tell_stopping()
            while locust.running() and not locust.overdue():
                follower.look()
                time.sleep(POLL)
    except KeyboardInterrupt:
        stop.set()
    finally:
        while not _closed(locust, follower):
            stop.set()
    return ("interrupted", "interrupted by the user") if stop.is_set() else locust.status()

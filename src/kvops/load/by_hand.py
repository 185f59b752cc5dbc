"""A run of a locust that was started by hand: its folder, and what kvops would have kept and said at its end."""

from __future__ import annotations

import sys
import time
from typing import Any

from locust.runners import MasterRunner

from kvops.errors import UsageError
from kvops.load import node_view, runs
from kvops.load.endings import Ending
from kvops.load.endpoint import Endpoint
from kvops.load.pacing import Pacing
from kvops.load.process import STOP_TIMEOUT
from kvops.load.scenarios import Scenario
from kvops.telemetry.targets import Target


def begin(environment: Any, scenario: Scenario, endpoint: Endpoint, target: Target) -> runs.Run:
    """Makes the run's folder. Raises UsageError."""
    given = vars(environment.parsed_options)
    arguments = [
        f"--{name}={text}"
        for name in scenario.options
        if (text := given.get(f"kvops_{name}")) is not None
    ]
    _take_defaults(environment.parsed_options, scenario)
    now = time.time()
    run = runs.create(runs.RunInfo(
        run=runs.new_id(scenario.name, now), scenario=scenario.name, report=scenario.report,
        options=scenario.parse(arguments), users=given["num_users"], processes=_workers(environment),
        duration=given.get("run_time"), pacing=scenario.pacing or Pacing(), seed=given["kvops_seed"],
        target=runs.without_credentials(target.url), model=endpoint.model, max_model_len=endpoint.max_model_len,
        before=node_view.snapshot(target.control_url, target.token), started_at=now,
    ))  # fmt: skip
    if run.info.pacing.open:
        # It ends with its schedule, and then waits for the answers.
        environment.parsed_options.run_time = None
    environment.stop_timeout = environment.stop_timeout or STOP_TIMEOUT
    return run


def _take_defaults(given: Any, scenario: Scenario) -> None:
    """Of the scenario, for what the command line leaves out: locust reads them after the run is opened."""
    open_loop = scenario.pacing is not None and scenario.pacing.open
    if given.num_users is None:
        given.num_users = given.expect_workers if open_loop else scenario.users
    given.spawn_rate = given.spawn_rate or given.num_users
    if not given.run_time and scenario.duration is not None:
        given.run_time = round(scenario.duration)


def _workers(environment: Any) -> int:
    """Raises UsageError for more of them than users."""
    given = environment.parsed_options
    workers: int = given.expect_workers if isinstance(environment.runner, MasterRunner) else 1
    if given.num_users < workers:
        raise UsageError(
            f"--users {given.num_users} are too few for {workers} workers",
            hint=f"--users {workers}",
        )
    return workers


def end(run: runs.Run, ended: tuple[Ending, str] | None, target: Target) -> None:
    """Finishes the run, keeps its reports and says its verdict. Raises LoadRunError, OSError."""
    # Their libraries take a second to load, which the run does not have.
    from kvops.load.reports import base, files, summary

    run.info.after = node_view.snapshot(target.control_url, target.token)
    run.finish("finished" if ended is None else "failed", "" if ended is None else ended[1])
    data = base.read(run)
    found = summary.analyse(data)
    files.write(data, found)
    lines = (f"{found.verdict.outcome.upper()}: {run.info.scenario}", *found.verdict.reasons)
    told = "\n  ".join(lines)
    sys.stderr.write(f"{told}\nkvops load show {run.folder}\n")

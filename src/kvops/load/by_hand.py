"""A run of a locust that was started by hand: its folder, and what kvops would have kept and said at its end."""

from __future__ import annotations

import secrets
import sys
import time
from pathlib import Path
from typing import Any

from locust.runners import MasterRunner

from kvops.errors import UsageError
from kvops.load import fits, inputs, node_view, runs, targets
from kvops.load.endings import Ending
from kvops.load.endpoint import Endpoint
from kvops.load.pacing import Pacing
from kvops.load.process import STOP_TIMEOUT
from kvops.load.scenarios import Scenario
from kvops.telemetry import fleet
from kvops.telemetry.targets import Target


def add_options(parser: Any) -> None:
    """Those of `kvops load run` that say which node may be loaded."""
    parser.add_argument(
        "--allow-remote", dest="kvops_allow_remote", metavar="HOST", action="append", default=[],
        help="a host other than this one that may be loaded; may be repeated", include_in_web_ui=False,
    )  # fmt: skip
    parser.add_argument(
        "--fleet", dest="kvops_fleet", metavar="FILE", type=Path, include_in_web_ui=False,
        help="names of nodes, and which may be loaded; default: fleet.yaml",
    )  # fmt: skip


def allowed(environment: Any, control_url: str | None) -> Target:
    """The node of `--host`, as `kvops load run` would take it. Raises UsageError, ConfigError, NodeNotFound."""
    given = environment.parsed_options
    known = fleet.read(given.kvops_fleet)
    target = targets.resolve(environment.host, known, control_url=control_url)
    targets.check_target(target.url, given.kvops_allow_remote, known)
    return target


def begin(environment: Any, scenario: Scenario, endpoint: Endpoint, target: Target) -> runs.Run:
    """Makes the run's folder. Raises UsageError, NodeProtocolError."""
    given = vars(environment.parsed_options)
    arguments = [
        f"--{name}={text}"
        for name in scenario.options
        if (text := given.get(f"kvops_{name}")) is not None
    ]
    options, seed = scenario.parse(arguments), _seed(given["kvops_seed"])
    _take_defaults(environment.parsed_options, scenario)
    fits.check(scenario, options, seed, endpoint)
    pacing, now = scenario.pacing or Pacing(), time.time()
    run = runs.create(runs.RunInfo(
        run=runs.new_id(scenario.name, now), scenario=scenario.name, report=scenario.report,
        options=options, users=given["num_users"], processes=_workers(environment, scenario),
        duration=given.get("run_time"), pacing=pacing, seed=seed,
        inputs=inputs.digests(scenario, options, pacing),
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


def _seed(given: int | None) -> int:
    """A new one unless it is given: what a prefix cache has seen of an earlier run must not answer for this one."""
    if given is not None:
        return given
    seed = secrets.randbelow(10**6)
    sys.stderr.write(f"--seed {seed} would send the same again\n")
    return seed


def _workers(environment: Any, scenario: Scenario) -> int:
    """Raises UsageError for more of them than users, and for more users than the scenario takes."""
    given = environment.parsed_options
    if given.num_users > scenario.max_users:
        raise UsageError(
            f"--users {given.num_users}: {scenario.name} takes at most {scenario.max_users}",
            hint="leave --users out",
        )
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

"""Hooks a scenario into locust: its options become locust's, a session opens with the run and ends it."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

import gevent
import msgspec
from locust import events
from locust.runners import MasterRunner, WorkerRunner

from kvops.errors import KvopsError, UsageError
from kvops.load import counting, locust_worker, runs, scenarios, server_samples
from kvops.load.conductor import Conductor
from kvops.load.endings import MARK, Ending
from kvops.load.endpoint import Endpoint, discover
from kvops.load.locust_master import Master, turn_away
from kvops.load.locust_session import Session
from kvops.load.pacing import Pacing
from kvops.load.process import HANDOVER, STOP_TIMEOUT, Handover
from kvops.load.sinks import FileSink

SAMPLE_EVERY = 1.0


def hook(locust_file: str, users: Any) -> None:
    """`users`: the class whose `session` is set when the run opens."""
    scenario = scenarios.read(Path(locust_file).with_suffix(".yaml"))

    @events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
    def add_options(parser: Any) -> None:
        for name, option in scenario.options.items():
            flag = "--" + name.replace("_", "-")
            parser.add_argument(flag, dest=f"kvops_{name}", metavar=option.type, help=option.help)
        parser.add_argument(
            "--seed",
            dest="kvops_seed",
            type=int,
            default=0,
            help="of all that is random in the run",
        )

    @events.init.add_listener  # type: ignore[untyped-decorator]
    def open_session(environment: Any, **_: Any) -> None:
        if environment.runner is None:
            return
        try:
            users.session = _open(environment, scenario)
        except KvopsError as error:
            logging.error("%s%s", MARK, error)
            if isinstance(environment.runner, MasterRunner):
                turn_away(environment, str(error))
            raise SystemExit(int(Ending.NOT_OPENED)) from error


def _open(environment: Any, scenario: scenarios.Scenario) -> Session:
    """Raises KvopsError."""
    text = os.environ.get(HANDOVER)
    handover = msgspec.json.decode(text, type=Handover) if text else None
    if isinstance(environment.runner, WorkerRunner):
        session = locust_worker.join(environment, scenario.name, handover)
    else:
        session = _conduct(environment, scenario, handover)
    environment.events.quit.add_listener(lambda **_: session.close())

    @environment.events.user_error.add_listener  # type: ignore[untyped-decorator]
    def broken(exception: BaseException, **_: Any) -> None:
        """An exception in a scenario is the scenario's fault: no verdict shall rest on what is left of it."""
        session.on_end(Ending.SCENARIO_BROKEN, f"{type(exception).__name__}: {exception}")

    return session


def _conduct(environment: Any, scenario: scenarios.Scenario, handover: Handover | None) -> Session:
    """In the process that the run is started and ended in. Raises KvopsError."""
    endpoint = discover(environment.host or "", os.environ.get("KVOPS_API_KEY"))
    run = (
        runs.load(Path(handover.folder)) if handover else _own_run(environment, scenario, endpoint)
    )
    conductor, sink = Conductor(environment, run, own=handover is None), FileSink(run.folder)
    session = Session(run.info, environment, endpoint, sink, conductor.end)
    environment.events.quit.add_listener(lambda **_: conductor.close())
    parent = None if handover is None else handover.parent
    gevent.spawn(_sample, endpoint, sink, conductor)
    if isinstance(environment.runner, MasterRunner):
        if environment.shape_class is not None:
            raise UsageError(
                f"{scenario.name} steps its users itself, in one process",
                hint="leave --processes out",
            )
        master = Master(environment, run, conductor, sink)
        master.wait_for_workers(parent)
        environment.events.spawning_complete.add_listener(lambda **_: gevent.spawn(master.watch))
        gevent.spawn(_end_with, parent, environment)
    else:
        session.counter = counting.counter(run.info.before)
        gevent.spawn(session.watch, parent)
        environment.events.spawning_complete.add_listener(
            lambda **_: gevent.spawn(_end_when_empty, environment)
        )
    return session


def _sample(endpoint: Endpoint, sink: FileSink, conductor: Conductor) -> None:
    """The node beside the clients, about once a second, where it tells anything of itself."""
    take = server_samples.source(
        endpoint.client, os.environ.get("KVOPS_CONTROL_URL"), os.environ.get("KVOPS_ADMIN_TOKEN")
    )
    while take is not None and conductor.ended is None:
        started = time.perf_counter()
        sample = take()
        try:
            if sample is not None:
                sink.server(sample)
        except OSError as error:
            conductor.end(Ending.DISK_FULL, f"the records cannot be written: {error}")
        gevent.sleep(max(0.0, SAMPLE_EVERY - (time.perf_counter() - started)))


def _end_with(parent: int | None, environment: Any) -> None:
    while parent is None or os.getppid() == parent:
        gevent.sleep(1)
    environment.runner.quit()


def _own_run(environment: Any, scenario: scenarios.Scenario, endpoint: Endpoint) -> runs.Run:
    """A run folder for a locust that was started by hand."""
    given = vars(environment.parsed_options)
    arguments = [
        f"--{name}={text}"
        for name in scenario.options
        if (text := given.get(f"kvops_{name}")) is not None
    ]
    _take_defaults(environment.parsed_options, scenario)
    users, workers = given["num_users"], 1
    if isinstance(environment.runner, MasterRunner):
        workers = given["expect_workers"]
    if users < workers:
        raise UsageError(
            f"--users {users} are too few for {workers} workers", hint=f"--users {workers}"
        )
    now = time.time()
    run = runs.create(runs.RunInfo(
        run=runs.new_id(scenario.name, now), scenario=scenario.name, report=scenario.report,
        options=scenario.parse(arguments), users=users, processes=workers, duration=given.get("run_time"),
        pacing=scenario.pacing or Pacing(), seed=given["kvops_seed"], target=runs.without_credentials(environment.host),
        model=endpoint.model, max_model_len=endpoint.max_model_len, started_at=now,
    ))  # fmt: skip
    if run.info.pacing.open:
        environment.parsed_options.run_time = (
            None  # it ends with its schedule, and then waits for the answers
        )
    environment.stop_timeout = environment.stop_timeout or STOP_TIMEOUT
    return run


def _take_defaults(given: Any, scenario: scenarios.Scenario) -> None:
    """Of the scenario, for what the command line leaves out: locust reads them after the run is opened."""
    open_loop = scenario.pacing is not None and scenario.pacing.open
    if given.num_users is None:
        given.num_users = given.expect_workers if open_loop else scenario.users
    given.spawn_rate = given.spawn_rate or given.num_users
    if not given.run_time and scenario.duration is not None:
        given.run_time = round(scenario.duration)


def _end_when_empty(environment: Any) -> None:
    """A run whose users have all left is over."""
    while environment.runner.user_count:
        gevent.sleep(0.1)
    environment.runner.quit()

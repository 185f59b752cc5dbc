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
from kvops.load import (
    by_hand,
    counting,
    locust_listener,
    locust_worker,
    runs,
    scenarios,
    server_samples,
)
from kvops.load.conductor import Conductor
from kvops.load.endings import MARK, Ending
from kvops.load.endpoint import Endpoint, discover
from kvops.load.locust_master import Master, turn_away
from kvops.load.locust_session import Session
from kvops.load.process import HANDOVER, Handover
from kvops.load.sinks import FileSink
from kvops.telemetry import targets
from kvops.telemetry.targets import Target

SAMPLE_EVERY = 1.0


def hook(locust_file: str, users: Any) -> None:
    """`users`: the class whose `session` is set when the run opens."""
    try:
        scenario = scenarios.read(Path(locust_file).with_suffix(".yaml"))
    except KvopsError as error:
        raise SystemExit(f"{error}") from error
    locust_listener.endure_strangers()

    @events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
    def add_options(parser: Any) -> None:
        for name, option in scenario.options.items():
            flag, told = "--" + name.replace("_", "-"), option.help.replace("%", "%%")
            parser.add_argument(flag, dest=f"kvops_{name}", metavar=option.type, help=told)
        parser.add_argument(
            "--seed",
            dest="kvops_seed",
            type=int,
            help="of all that is random in the run; default: a new one, recorded",
        )
        by_hand.add_options(parser)

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
        session = locust_worker.join(environment, scenario, handover)
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
    if isinstance(environment.runner, MasterRunner) and scenario.max_processes == 1:
        raise UsageError(f"{scenario.name} sends from one process", hint="leave --processes out")
    control_url = os.environ.get("KVOPS_CONTROL_URL")
    target = (
        targets.resolve(environment.host, control_url=control_url)
        if handover
        else by_hand.allowed(environment, control_url)
    )
    endpoint = discover(target.url, target.api_key)
    run = (
        runs.load(Path(handover.folder))
        if handover
        else by_hand.begin(environment, scenario, endpoint, target)
    )
    conductor, sink = Conductor(environment), FileSink(run.folder)
    session = Session(run.info, environment, endpoint, sink, conductor.end)
    if handover is None:
        environment.events.quit.add_listener(lambda **_: by_hand.end(run, conductor.ended, target))
    parent = None if handover is None else handover.parent
    gevent.spawn(_sample, endpoint, target, sink, conductor)
    if isinstance(environment.runner, MasterRunner):
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


def _sample(endpoint: Endpoint, target: Target, sink: FileSink, conductor: Conductor) -> None:
    """The node beside the clients, about once a second, where it tells anything of itself."""
    take = server_samples.source(endpoint.client, target.control_url, target.token)
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


def _end_when_empty(environment: Any) -> None:
    """A run whose users have all left is over."""
    while environment.runner.user_count:
        gevent.sleep(0.1)
    environment.runner.quit()

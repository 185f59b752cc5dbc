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

from kvops.errors import KvopsError
from kvops.load import runs, scenarios
from kvops.load.client import Timeouts
from kvops.load.endings import MARK, Ending
from kvops.load.endpoint import Endpoint, discover
from kvops.load.locust_session import Session
from kvops.load.process import HANDOVER, Handover
from kvops.load.sinks import FileSink


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
            raise SystemExit(int(Ending.NOT_OPENED)) from error


def _open(environment: Any, scenario: scenarios.Scenario) -> Session:
    """Raises KvopsError."""
    text = os.environ.get(HANDOVER)
    handover = msgspec.json.decode(text, type=Handover) if text else None
    endpoint = discover(environment.host or "", os.environ.get("KVOPS_API_KEY"), Timeouts())
    run = (
        runs.load(Path(handover.folder)) if handover else _own_run(environment, scenario, endpoint)
    )
    session = Session(run.info, environment, endpoint, FileSink(run.folder))
    gevent.spawn(session.watch, handover.parent if handover else None)
    environment.events.spawning_complete.add_listener(
        lambda **_: gevent.spawn(_end_when_empty, environment)
    )

    @environment.events.user_error.add_listener  # type: ignore[untyped-decorator]
    def broken(exception: BaseException, **_: Any) -> None:
        """An exception in a scenario is the scenario's fault: no verdict shall rest on what is left of it."""
        session.on_end(Ending.SCENARIO_BROKEN, f"{type(exception).__name__}: {exception}")

    @environment.events.quit.add_listener  # type: ignore[untyped-decorator]
    def close(**_: Any) -> None:
        session.close()
        if handover is None:
            run.finish(
                "failed" if session.ended else "finished",
                session.ended[1] if session.ended else "",
            )
            logging.info("kvops load show %s", run.folder)

    return session


def _own_run(environment: Any, scenario: scenarios.Scenario, endpoint: Endpoint) -> runs.Run:
    """A run folder for a locust that was started by hand."""
    given = vars(environment.parsed_options)
    arguments = [
        f"--{name}={text}"
        for name in scenario.options
        if (text := given.get(f"kvops_{name}")) is not None
    ]
    now = time.time()
    return runs.create(runs.RunInfo(
        run=runs.new_id(scenario.name, now), scenario=scenario.name, report=scenario.report,
        options=scenario.parse(arguments), users=given.get("num_users") or 1, duration=given.get("run_time"),
        seed=given["kvops_seed"], target=runs.without_credentials(environment.host), model=endpoint.model,
        max_model_len=endpoint.max_model_len, started_at=now,
    ))  # fmt: skip


def _end_when_empty(environment: Any) -> None:
    """A run whose users have all left is over."""
    while environment.runner.user_count:
        gevent.sleep(0.1)
    environment.runner.quit()

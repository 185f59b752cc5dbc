"""A worker of several locust processes: asks the master for the run, and tells it what becomes of its users."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import gevent
import msgspec
from gevent.event import AsyncResult

from kvops.errors import KvopsError, LoadRunError
from kvops.load import clock, counting, inputs, runs
from kvops.load.endings import Ending
from kvops.load.endpoint import Endpoint, discover
from kvops.load.locust_master import (
    END,
    HELLO,
    LEAVES_AFTER,
    LINES,
    READY,
    RUN,
    STOP,
    STOPPED,
    USERS,
)
from kvops.load.locust_session import Session
from kvops.load.process import Handover
from kvops.load.records import ClientSample, RequestRecord
from kvops.load.scenarios import Scenario
from kvops.load.sinks import FileSink
from kvops.load.targets import check_target
from kvops.telemetry import fleet

LOOK = 0.1
FLUSH_EVERY = 0.5
ASK_EVERY = 1.0
PATIENCE = 60.0


class MessageSink:
    """Sends lines to the master in batches, their times moved to the master's clock."""

    def __init__(self, runner: Any, clock_offset: float) -> None:
        self._runner, self._offset = runner, clock_offset
        self._requests: list[bytes] = []
        self._client: list[bytes] = []

    def record(self, record: RequestRecord) -> None:
        intended = None if record.t_intended is None else record.t_intended + self._offset
        moved = msgspec.structs.replace(
            record, t_send=record.t_send + self._offset, t_intended=intended
        )
        self._requests.append(msgspec.json.encode(moved) + b"\n")

    def sample(self, sample: ClientSample) -> None:
        moved = msgspec.structs.replace(sample, at=sample.at + self._offset)
        self._client.append(msgspec.json.encode(moved) + b"\n")

    def flush(self) -> None:
        if self._requests or self._client:
            lines = {"requests": b"".join(self._requests), "client": b"".join(self._client)}
            self._requests, self._client = [], []
            self._runner.send_message(LINES, lines)

    def keep_flushing(self) -> None:
        while True:
            gevent.sleep(FLUSH_EVERY)
            self.flush()

    def close(self) -> None:
        pass  # what came after the last flush was after the end of the run


def join(environment: Any, scenario: Scenario, handover: Handover | None) -> Session:
    """Take part in the master's run. Raises KvopsError, which the master is told."""
    runner = environment.runner
    try:
        info, offset = _ask_for_the_run(runner)
        session = _session(environment, info, offset, scenario, handover)
    except KvopsError as error:
        runner.send_message(READY, {"fault": str(error)})
        gevent.sleep(LEAVES_AFTER)
        raise
    session.counter = counting.counter(info.before)
    _hook(runner, environment, session)
    forked = environment.parsed_options.processes
    gevent.spawn(session.watch, os.getppid() if handover is not None or forked else None)
    runner.send_message(READY, {"fault": ""})
    return session


def _ask_for_the_run(runner: Any) -> tuple[runs.RunInfo, float]:
    """The run, and how far the master's clock is ahead of ours, seconds. Raises LoadRunError."""
    answer: AsyncResult = AsyncResult()
    runner.register_message(RUN, lambda msg, **_: answer.set((msg.data, clock.now())))
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        asked = clock.now()
        runner.send_message(HELLO)
        try:
            data, came = answer.get(timeout=ASK_EVERY)
        except gevent.Timeout:
            continue
        if data["fault"]:
            raise LoadRunError(f"the master has no run: {data['fault']}")
        return msgspec.json.decode(data["run"], type=runs.RunInfo), data["now"] - (asked + came) / 2
    raise LoadRunError("the master did not say what to run", hint="is it kvops load run --workers?")


def _session(
    environment: Any,
    info: runs.RunInfo,
    offset: float,
    scenario: Scenario,
    handover: Handover | None,
) -> Session:
    """Raises KvopsError."""
    if info.scenario != scenario.name:
        raise LoadRunError(
            f"the master runs {info.scenario}, this worker {scenario.name}",
            hint="name the same scenario",
        )
    if handover is not None and handover.folder:  # a process of kvops' own, on the same machine
        sink: Any = FileSink(Path(handover.folder))
    else:
        # The master's word alone does not point this machine anywhere.
        given = (
            environment.parsed_options.kvops_allow_remote
            if handover is None
            else handover.allow_remote
        )
        check_target(info.target, given, fleet.read())
        inputs.check(scenario, info)
        sink = MessageSink(environment.runner, offset)
        gevent.spawn(sink.keep_flushing)
    endpoint = discover(info.target, os.environ.get("KVOPS_API_KEY"))
    served = Endpoint(endpoint.client, info.model or endpoint.model, info.max_model_len)

    def end(ending: Ending, reason: str) -> None:
        environment.runner.send_message(END, {"ending": int(ending), "reason": reason})

    return Session(info, environment, served, sink, end, max(0, environment.runner.worker_index))


def _hook(runner: Any, environment: Any, session: Session) -> None:
    def stop(**_: Any) -> None:
        runner.stop()
        session.flush()
        runner.send_message(STOPPED)

    def tell_users() -> None:
        told = None
        while True:
            if (users := runner.user_count) != told:
                runner.send_message(USERS, {"users": users})
                told = users
            gevent.sleep(LOOK)

    runner.register_message(STOP, stop, concurrent=True)
    environment.events.spawning_complete.add_listener(_once(lambda: gevent.spawn(tell_users)))


def _once(do: Any) -> Any:
    done: list[bool] = []

    def listener(**_: Any) -> None:
        if not done:
            done.append(True)
            do()

    return listener

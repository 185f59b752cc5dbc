"""The master of several locust processes: hands out the run, gathers the records of workers on other machines,

and ends the run only when every worker has sent all it has.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Annotated, Any, TypeVar

import gevent
import msgspec

from kvops.errors import LoadRunError
from kvops.load import clock, runs
from kvops.load.conductor import Conductor
from kvops.load.endings import Ending
from kvops.load.process import STOP_TIMEOUT
from kvops.load.sinks import FileSink

HELLO, RUN, READY = "kvops_hello", "kvops_run", "kvops_ready"
USERS, LINES, END = "kvops_users", "kvops_lines", "kvops_end"
STOP, STOPPED = "kvops_stop", "kvops_stopped"
PATIENCE = 600.0
"""Seconds that the workers have to come."""
STOP_PATIENCE = STOP_TIMEOUT + 5.0
LOOK = 0.1
TURN_AWAY_PATIENCE = 3.0
LEAVES_AFTER = 0.5
"""Seconds that a last message has to leave a process before it ends."""


T = TypeVar("T", bound=msgspec.Struct)


class Ready(msgspec.Struct):
    fault: str
    """Why the worker cannot take part; empty: it can."""


class Users(msgspec.Struct):
    users: Annotated[int, msgspec.Meta(ge=0)]


class Lines(msgspec.Struct):
    requests: bytes
    client: bytes


class End(msgspec.Struct):
    ending: Ending
    reason: str


def turn_away(environment: Any, reason: str) -> None:
    """Tell the workers that there will be no run: they would else wait for it."""
    runner, until = environment.runner, time.monotonic() + TURN_AWAY_PATIENCE
    expected = environment.parsed_options.expect_workers
    while len(runner.clients) < expected and time.monotonic() < until:
        gevent.sleep(LOOK)
    runner.send_message(RUN, {"fault": reason})
    gevent.sleep(LEAVES_AFTER)


class Master:
    def __init__(
        self, environment: Any, run: runs.Run, conductor: Conductor, sink: FileSink
    ) -> None:
        self._runner, self._run, self._conductor, self._sink = (
            environment.runner, run, conductor, sink,
        )  # fmt: skip
        self._ready: set[str] = set()
        self._stopped: set[str] = set()
        self._users: dict[str, int] = {}
        """Of the workers that have started all of theirs."""
        self._quit, self._quitting = self._runner.quit, False
        self._runner.quit = self.quit
        heard = {HELLO: self._hello, READY: self._on_ready, USERS: self._on_users,
                 LINES: self._on_lines, END: self._on_end, STOPPED: self._on_stopped}  # fmt: skip
        for kind, listener in heard.items():
            self._runner.register_message(kind, listener)

    def wait_for_workers(self, parent: int | None) -> None:
        """Until all of the run's are ready. Raises LoadRunError when one cannot take part, or does not come."""
        wanted, until = self._run.info.processes, time.monotonic() + PATIENCE
        while len(self._ready) < wanted:
            if self._conductor.ended is not None:
                raise LoadRunError(self._conductor.ended[1])
            if time.monotonic() > until or parent not in (None, os.getppid()):
                raise LoadRunError(f"only {len(self._ready)} of {wanted} workers came")
            gevent.sleep(LOOK)

    def watch(self) -> None:
        """Ends the run when all users have left, or when a worker is lost: its share would be missing."""
        while not self._quitting:
            gevent.sleep(LOOK)
            if len(self._users) == self._run.info.processes and not any(self._users.values()):
                self._runner.quit()
            for name in self._ready:
                client = self._runner.clients.get(name)
                if not self._quitting and (client is None or client.state == "missing"):
                    self._conductor.end(Ending.WORKER_LOST, f"the worker {name} went away")
                    return

    def quit(self) -> None:
        """In place of the runner's own, which does not wait for its workers."""
        if not self._quitting:
            self._quitting = True
            self._runner.send_message(STOP)
            until = time.monotonic() + STOP_PATIENCE
            while not self._ready <= self._stopped | self._missing() and time.monotonic() < until:
                gevent.sleep(LOOK)
        self._quit()

    def _missing(self) -> set[str]:
        present = self._runner.clients
        return {
            name for name in self._ready if name not in present or present[name].state == "missing"
        }

    def _hello(self, msg: Any, **_: Any) -> None:
        said = {"run": msgspec.json.encode(self._run.info), "now": clock.now(), "fault": ""}
        self._runner.send_message(RUN, said, client_id=msg.node_id)

    def _on_ready(self, msg: Any, **_: Any) -> None:
        told = _told(msg, Ready)
        if told is not None and told.fault:
            self._conductor.end(Ending.NOT_OPENED, told.fault)
        elif told is not None:
            self._ready.add(msg.node_id)

    def _on_users(self, msg: Any, **_: Any) -> None:
        told = self._told_by_a_worker(msg, Users)
        if told is not None:
            self._users[msg.node_id] = told.users

    def _on_lines(self, msg: Any, **_: Any) -> None:
        told = self._told_by_a_worker(msg, Lines)
        if told is None:
            return
        try:
            self._sink.append(told.requests, told.client)
        except OSError as error:
            self._conductor.end(Ending.DISK_FULL, f"the records cannot be written: {error}")

    def _on_end(self, msg: Any, **_: Any) -> None:
        told = self._told_by_a_worker(msg, End)
        if told is not None:
            self._conductor.end(told.ending, told.reason)

    def _on_stopped(self, msg: Any, **_: Any) -> None:
        self._stopped.add(msg.node_id)

    def _told_by_a_worker(self, msg: Any, kind: type[T]) -> T | None:
        """None for one that does not take part in the run, or says nothing of that kind."""
        return _told(msg, kind) if msg.node_id in self._ready else None


def _told(msg: Any, kind: type[T]) -> T | None:
    """None for what is nothing of that kind, from whomever it came."""
    try:
        return msgspec.convert(msg.data, kind)
    except msgspec.ValidationError as error:
        logging.error("a message of %r is left out: %s", msg.node_id, error)
        return None

"""What every scenario stands on inside locust's process: the session of the run and the user base classes.

One `events.request` and one JSON line per HTTP request. Imports locust, so kvops' own process never imports this.
"""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import gevent
import msgspec
import psutil
from locust import User, events, task
from locust.exception import StopUser

from kvops.load import runs, scenarios
from kvops.load.client import Client, Timeouts
from kvops.load.endpoint import Endpoint, discover
from kvops.load.exchange import Exchange
from kvops.load.launcher import HANDOVER, Handover
from kvops.load.pacing import Shot
from kvops.load.records import (
    CLIENT_FILE,
    REQUESTS_FILE,
    ClientSample,
    ErrorClass,
    JsonLines,
    NeedleScore,
    RequestRecord,
)

TICK = 0.05
BROKEN = 3
"""Exit code of a locust whose scenario raised an exception."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a scenario makes of an answer. Without an error class the answer is the expected one."""

    error_class: ErrorClass | None = None
    message: str = ""
    needle: NeedleScore | None = None


Judge = Callable[[Exchange], Outcome]


class Session:
    """One run in this process: where it goes, its options, its files, and what is in flight."""

    def __init__(self, run: runs.Run, environment: Any, endpoint: Endpoint) -> None:
        self.run, self.environment = run, environment
        self.endpoint = endpoint
        self.options = run.info.options
        self.seed = run.info.seed
        self.in_flight = 0
        self._numbers = itertools.count()
        self._shots = itertools.count()
        self._requests = JsonLines(run.folder / REQUESTS_FILE)
        self._client = JsonLines(run.folder / CLIENT_FILE)

    def next_shot(self) -> int:
        """Number of the next shot of a closed loop, over all users."""
        return next(self._shots)

    def send(
        self,
        client: Client,
        path: str,
        body: dict[str, Any] | bytes | None,
        name: str,
        user: int,
        judge: Judge,
    ) -> Exchange:
        """Send (a GET without a body), judge, report to locust and to disk. Raises nothing for a failed request."""
        exchange, number = Exchange(), next(self._numbers)
        outcome = Outcome(
            error_class=ErrorClass.CLIENT_CANCEL, message="the run ended before the answer"
        )
        self.in_flight += 1
        try:
            client.complete(path, body, exchange)
            outcome = judge(exchange)
        finally:
            self.in_flight -= 1
            self._report(exchange, outcome, name, number, user)
        return exchange

    def _report(
        self, exchange: Exchange, outcome: Outcome, name: str, number: int, user: int
    ) -> None:
        record = self._record(exchange, outcome, name, number, user)
        self._requests.append(record)
        self.environment.events.request.fire(
            request_type="POST",
            name=name,
            response_time=exchange.e2e * 1000,
            response_length=len(exchange.text),
            exception=RuntimeError(f"{record.error_class}: {record.error}")
            if record.failed
            else None,
            context={"ttft": exchange.ttft, "error_class": record.error_class},
        )

    def _record(
        self, got: Exchange, outcome: Outcome, name: str, number: int, user: int
    ) -> RequestRecord:
        return RequestRecord(
            run=self.run.info.run, scenario=self.run.info.scenario, name=name, seq=number, user=user,
            t_send=got.t_send, connect=got.connect, ttft=got.ttft, itl=got.gaps,
            last=got.deltas[-1] if got.deltas else None, e2e=got.e2e,
            prompt_tokens=got.usage.prompt, cached_tokens=got.usage.cached, completion_tokens=got.usage.completion,
            truncated_tokens=got.usage.truncated, status=got.status, finish_reason=got.finish_reason,
            error_class=outcome.error_class, error=outcome.message or None,
            expected=outcome.error_class is None, needle=outcome.needle,
        )  # fmt: skip

    def watch(self, parent: int | None) -> None:
        """Once a second: how busy and how late this process is, and whether kvops is still there."""
        process = psutil.Process()
        process.cpu_percent()
        while parent is None or os.getppid() == parent:
            lag, until = 0.0, time.perf_counter() + 1
            while (before := time.perf_counter()) < until:
                gevent.sleep(TICK)
                lag = max(lag, time.perf_counter() - before - TICK)
            users = self.environment.runner.user_count
            cpu = process.cpu_percent() / 100
            self._client.append(
                ClientSample(time.time(), users, self.in_flight, cpu, max(0.0, lag))
            )
        self.environment.runner.quit()

    def close(self) -> None:
        self._requests.close()
        self._client.close()


class NodeUser(User):  # type: ignore[misc]
    """A user that speaks to one node through a blocking client of its own."""

    abstract = True
    session: ClassVar[Session]
    _ids: ClassVar[Iterator[int]] = itertools.count()

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.number = next(self._ids)
        self.client = self.session.endpoint.client

    def complete(
        self, path: str, body: dict[str, Any] | bytes, name: str, judge: Judge
    ) -> Exchange:
        return self.session.send(self.client, path, body, name, self.number, judge)

    def get(self, path: str, name: str, judge: Judge) -> Exchange:
        return self.session.send(self.client, path, None, name, self.number, judge)

    def chat(
        self, text: str, *, max_tokens: int, name: str, judge: Judge, **fields: Any
    ) -> Exchange:
        """One greedy chat turn, streamed, with usage."""
        body = {
            "model": self.session.endpoint.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return self.complete("/v1/chat/completions", body | fields, name, judge)


class PlanUser(NodeUser):
    """Users that share one list of work; the run ends when the list is empty and the last answer is in."""

    abstract = True
    work: ClassVar[deque[Any] | None] = None

    def plan(self) -> Iterable[Any]:
        """The whole work of the run, asked once. Must not wait for anything."""
        return ()

    def step(self, item: Any) -> None:
        """Do one item."""

    @task  # type: ignore[untyped-decorator]
    def take(self) -> None:
        if PlanUser.work is None:
            PlanUser.work = deque(self.plan())
        if not PlanUser.work:
            raise StopUser
        self.step(PlanUser.work.popleft())


class PacedUser(NodeUser):
    """Users that send one shot after the other: when, the run's pacing says; what, the scenario."""

    abstract = True

    def ask(self, shot: Shot) -> None:
        """Build the shot's request and send it. In an open loop many of one user's are in flight at once."""

    @task  # type: ignore[untyped-decorator]
    def take(self) -> None:
        self.ask(Shot(self.session.next_shot()))


def plain_answer(got: Exchange) -> Outcome:
    """Right when the stream came whole and said something."""
    if got.error_class is not None:
        return Outcome(error_class=got.error_class, message=got.message)
    if not got.text:
        return Outcome(error_class=ErrorClass.EMPTY_OUTPUT, message="the answer is empty")
    return Outcome()


def register(locust_file: str) -> None:
    """Make the scenario's options locust's own and hook the session into the run. Called once, by the scenario."""
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
        if environment.runner is not None:
            _open(environment, scenario)


def _open(environment: Any, scenario: scenarios.Scenario) -> None:
    text = os.environ.get(HANDOVER)
    handover = msgspec.json.decode(text, type=Handover) if text else None
    endpoint = discover(environment.host or "", os.environ.get("KVOPS_API_KEY"), Timeouts())
    run = (
        runs.load(Path(handover.folder)) if handover else _own_run(environment, scenario, endpoint)
    )
    session = Session(run, environment, endpoint)
    NodeUser.session = session
    gevent.spawn(session.watch, handover.parent if handover else None)
    environment.events.spawning_complete.add_listener(
        lambda **_: gevent.spawn(_end_when_empty, environment)
    )
    environment.events.user_error.add_listener(lambda **_: _end_broken(environment))

    @environment.events.quit.add_listener  # type: ignore[untyped-decorator]
    def close(**_: Any) -> None:
        session.close()
        if handover is None:
            run.finish("failed" if environment.process_exit_code else "finished")
            logging.info("kvops load show %s", run.folder)


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


def _end_broken(environment: Any) -> None:
    """An exception in a scenario is the scenario's fault: no verdict shall rest on what is left of it."""
    environment.process_exit_code = BROKEN
    gevent.spawn(environment.runner.quit)

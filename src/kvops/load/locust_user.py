"""The user base classes that every scenario stands on, inside locust's process.

One `events.request` and one JSON line per HTTP request. Imports locust, so kvops' own process never imports this.
"""

from __future__ import annotations

import itertools
import logging
import math
import time
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

import gevent
from gevent.pool import Pool
from locust import User, task
from locust.exception import StopUser
from locust.user.task import LOCUST_STATE_STOPPING

from kvops.load import clock
from kvops.load.client import Leave
from kvops.load.exchange import Exchange
from kvops.load.haystack import Count
from kvops.load.locust_run import hook
from kvops.load.locust_session import Call, Judge, Outcome, Session
from kvops.load.needle import counter
from kvops.load.pacing import Shot
from kvops.load.process import STOP_TIMEOUT
from kvops.load.records import ErrorClass
from kvops.load.workload import fitted

__all__ = [
    "Judge", "NodeUser", "Outcome", "PacedUser", "PlanUser", "Shot", "plain_answer", "register",
]  # fmt: skip

Messages = Sequence[dict[str, Any]]
LOOK = 0.2
"""Seconds between looks at whether the run ends, while the next shot is not due."""


class NodeUser(User):  # type: ignore[misc]
    """A user that speaks to one node through a blocking client of its own."""

    abstract = True
    session: ClassVar[Session]
    _ids: ClassVar[Iterator[int]] = itertools.count()

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.number = next(self._ids) * self.session.workers + self.session.worker
        self.client = self.session.endpoint.client

    def complete(
        self, path: str, body: dict[str, Any] | bytes, name: str, judge: Judge, **said: Any
    ) -> Exchange:
        """POST. `said`: the other fields of a Call (shot, group, asked_input, asked_output, leave)."""
        call = Call(name=name, user=self.number, judge=judge, **said)
        return self.session.send(self.client, path, body, call)

    def get(self, path: str, name: str, judge: Judge) -> Exchange:
        call = Call(name=name, user=self.number, judge=judge)
        return self.session.send(self.client, path, None, call)

    def chat(
        self,
        asked: str | Messages,
        *,
        max_tokens: int,
        name: str,
        judge: Judge,
        shot: Shot | None = None,
        group: str = "",
        asked_input: int | None = None,
        leave: Leave | None = None,
        **fields: Any,
    ) -> Exchange:
        """One greedy chat answer, streamed, with usage. `asked`: the user's text, or all messages.

        `fields` go into the body as they are.
        """
        messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
        body = {
            "model": self.session.endpoint.model,
            "messages": messages,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return self.complete(
            "/v1/chat/completions", body | fields, name, judge, shot=shot, group=group,
            asked_input=asked_input, asked_output=max_tokens, leave=leave,
        )  # fmt: skip


class PlanUser(NodeUser):
    """Users that share one list of work; the run ends when the list is empty and the last answer is in."""

    abstract = True
    work: ClassVar[deque[Any] | None] = None

    def plan(self) -> Iterable[Any]:
        """The whole work of the run, the same in every worker, asked once. Must not wait for anything."""
        return ()

    def step(self, item: Any) -> None:
        """Do one item."""

    @task  # type: ignore[untyped-decorator]
    def take(self) -> None:
        if PlanUser.work is None:
            session = self.session
            PlanUser.work = deque(
                itertools.islice(self.plan(), session.worker, None, session.workers)
            )
        if not PlanUser.work:
            raise StopUser
        self.step(PlanUser.work.popleft())


class PacedUser(NodeUser):
    """Sends one shot after the other: when, the run's pacing says; what, the scenario.

    In a closed loop each user waits for its answer. In an open loop one user of each worker sends them all.
    """

    abstract = True
    count: Count | None = None
    """Of a prompt's tokens where a trace says how many, and the node has a tokenizer route; it asks nobody."""

    def ask(self, shot: Shot) -> None:
        """Build the shot's request and send it. In an open loop many run at once: keep nothing on `self`."""

    @task  # type: ignore[untyped-decorator]
    def take(self) -> None:
        if not self.session.pacing.open:
            return self.ask(Shot(self.session.next_shot()))
        self._drive()
        raise StopUser

    def _drive(self) -> None:
        """Walk the schedule. A shot for which there is no room is recorded as not sent, never sent later."""
        session = self.session
        if session.pacing.trace:
            self.count = self._measure()
        room = Pool(max(1, math.ceil(session.pacing.max_in_flight / session.workers)))
        session.started, begin = clock.now(), time.perf_counter()
        try:
            for shot in session.schedule():
                if not self._until(begin + (shot.at or 0.0)):
                    break
                if room.full():
                    session.not_sent(shot, self.number)
                else:
                    room.spawn(self._fire, shot)
            room.join(STOP_TIMEOUT)
        finally:
            room.kill()

    def _measure(self) -> Count | None:
        count, exact = counter(self.client, self.session.endpoint.model)
        return fitted(count) if exact else None

    def _until(self, due: float) -> bool:
        """Wait until then, on the clock of perf_counter. False when the run ends before."""
        while self._state != LOCUST_STATE_STOPPING:
            left = due - time.perf_counter()
            if left <= 0:
                return True
            gevent.sleep(min(left, LOOK))
        return False

    def _fire(self, shot: Shot) -> None:
        try:
            self.ask(shot)
        except Exception as error:
            self.environment.events.user_error.fire(
                user_instance=self, exception=error, tb=error.__traceback__
            )
            logging.error("%s\n%s", error, traceback.format_exc())


def plain_answer(got: Exchange) -> Outcome:
    """Right when the stream came whole and said something. Every answer that is judged by this was asked as one."""
    if got.error_class is not None:
        return Outcome(error_class=got.error_class, message=got.message)
    if not got.text:
        return Outcome(error_class=ErrorClass.EMPTY_OUTPUT, message="the answer is empty")
    if not got.deltas:
        message = (
            f"a stream was asked for and {got.headers.get('content-type') or 'no stream'} came"
        )
        return Outcome(error_class=ErrorClass.NOT_A_STREAM, message=message)
    return Outcome()


def register(locust_file: str) -> None:
    """Make the scenario's options locust's own and give its users the session. Called once, by the scenario."""
    hook(locust_file, NodeUser)

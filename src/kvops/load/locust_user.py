"""The user base classes that every scenario stands on, inside locust's process.

One `events.request` and one JSON line per HTTP request. Imports locust, so kvops' own process never imports this.
"""

from __future__ import annotations

import itertools
import logging
import math
import time
import traceback
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
    "Judge", "ListUser", "NodeUser", "Outcome", "PacedUser", "PlanUser", "Shot", "plain_answer", "register",
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


class ShotUser(NodeUser):
    """Takes one shot after the other: when, the run's pacing says.

    In a closed loop each user waits for its answer. In an open loop one user of each worker sends them all.
    """

    abstract = True

    def shoot(self, shot: Shot) -> None:
        """Do what the shot stands for. In an open loop many run at once: keep nothing on `self`."""

    def most(self) -> int | None:
        """Shots of the whole run; None: as many as its time lets."""
        return None

    def get_ready(self) -> None:
        """Before the clock of an open loop starts, so that nothing but the clock makes a shot late."""

    @task  # type: ignore[untyped-decorator]
    def take(self) -> None:
        if self.session.pacing.open:
            self._drive()
            raise StopUser
        shot, most = Shot(self.session.next_shot()), self.most()
        if most is not None and shot.number >= most:
            raise StopUser
        self.shoot(shot)

    def _drive(self) -> None:
        """Walk the schedule. A shot for which there is no room is recorded as not sent, never sent later."""
        session, most = self.session, self.most()
        self.get_ready()
        room = Pool(max(1, math.ceil(session.pacing.max_in_flight / session.workers)))
        session.started, begin = clock.now(), time.perf_counter()
        try:
            for shot in session.schedule(most):
                if not self._until(begin + (shot.at or 0.0)):
                    break
                if room.full():
                    session.not_sent(shot, self.number)
                else:
                    room.spawn(self._fire, shot)
            if most is not None:
                self._see_through(room, begin + (session.info.duration or math.inf))
            room.join(STOP_TIMEOUT)
        finally:
            room.kill()

    def _see_through(self, room: Pool, end: float) -> None:
        """Wait for the last answers of a list as long as the run may last."""
        while len(room) and time.perf_counter() < end and self._state != LOCUST_STATE_STOPPING:
            room.join(LOOK)

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
            self.shoot(shot)
        except Exception as error:
            self.environment.events.user_error.fire(
                user_instance=self, exception=error, tb=error.__traceback__
            )
            logging.error("%s\n%s", error, traceback.format_exc())


class PacedUser(ShotUser):
    """Sends requests, or sessions, for as long as the run goes on."""

    abstract = True
    count: Count | None = None
    """Of a prompt's tokens where a trace says how many, and the node has a tokenizer route; it asks nobody."""

    def ask(self, shot: Shot) -> None:
        """Build the shot's request and send it. In an open loop many run at once: keep nothing on `self`."""

    def shoot(self, shot: Shot) -> None:
        self.ask(shot)

    def get_ready(self) -> None:
        if self.session.pacing.trace:
            count, exact = counter(self.client, self.session.endpoint.model)
            self.count = fitted(count) if exact else None


class PlanUser(ShotUser):
    """Users that share one list of work, an item a shot; the run ends with the list and its last answer."""

    abstract = True
    _work: ClassVar[list[Any] | None] = None

    def plan(self) -> Iterable[Any]:
        """The whole work of the run, the same in every worker, asked once. Must not wait for anything."""
        return ()

    def step(self, item: Any) -> None:
        """Do one item, where users that wait for their answers do them all."""

    def work(self) -> list[Any]:
        if PlanUser._work is None:
            PlanUser._work = list(self.plan())
        return PlanUser._work

    def most(self) -> int:
        return len(self.work())

    def shoot(self, shot: Shot) -> None:
        self.step(self.work()[shot.number])


class ListUser(PlanUser):
    """One whose items do not wait for each other: the run says when they are sent."""

    abstract = True

    def prepare(self, item: Any) -> Any:
        """What `send` needs for it; may ask the node to count. An open loop's clock starts when all is prepared."""
        return item

    def send(self, made: Any, shot: Shot) -> None:
        """Send what was prepared. In an open loop many run at once: keep nothing on `self`."""

    def get_ready(self) -> None:
        session, work = self.session, self.work()
        self._made = {
            number: self.prepare(work[number])
            for number in range(session.worker, len(work), session.workers)
        }

    def shoot(self, shot: Shot) -> None:
        number = shot.number
        waits = not self.session.pacing.open
        self.send(self.prepare(self.work()[number]) if waits else self._made.pop(number), shot)


def plain_answer(got: Exchange) -> Outcome:
    """Right when the stream came whole and said something, if only by thinking or by calling a tool.

    Every answer that is judged by this was asked as a stream.
    """
    if got.error_class is not None:
        return Outcome(error_class=got.error_class, message=got.message)
    if not got.said:
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

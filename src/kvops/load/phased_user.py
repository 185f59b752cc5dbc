"""Users that all follow one timetable: what they do depends on the phase and on who they are. Imports locust."""

from __future__ import annotations

import time
from typing import Any, ClassVar

import gevent
from locust import events, task
from locust.exception import StopUser

from kvops.load.exchange import Exchange
from kvops.load.locust_user import NodeUser, Outcome, plain_answer
from kvops.load.phases import Timetable
from kvops.load.records import ErrorClass
from kvops.load.refusals import refused, retry_after

LOOK = 0.2
"""Seconds between two looks at the clock of a user that has nothing to do."""


class PhasedUser(NodeUser):
    """The run ends when the timetable does and the last answer is in."""

    abstract = True
    begin: ClassVar[float | None] = None
    """When the first user of this process began, on the clock of `time.monotonic`."""

    def timetable(self) -> Timetable:
        """The same for every user."""
        raise NotImplementedError

    def act(self, phase: str) -> None:
        """Do one thing, or `rest`."""

    @task  # type: ignore[untyped-decorator]
    def take(self) -> None:
        if PhasedUser.begin is None:
            PhasedUser.begin = time.monotonic()
        phase = self.timetable().at(self.elapsed())
        if phase is None:
            raise StopUser
        self.act(phase)

    def elapsed(self) -> float:
        return time.monotonic() - (PhasedUser.begin or time.monotonic())

    def rest(self, seconds: float = LOOK) -> None:
        """For so long, but not beyond the end of the phase."""
        gevent.sleep(min(seconds, self.timetable().left(self.elapsed())))


@events.test_start.add_listener  # type: ignore[untyped-decorator]
def _begin_anew(**_: Any) -> None:
    """A run that is started again from locust's page has a timetable of its own."""
    PhasedUser.begin = None


def answer_or_refusal(got: Exchange) -> Outcome:
    """Right when it was answered, and when it was refused with the time to come back."""
    if not refused(got):
        return plain_answer(got)
    if retry_after(got) is None:
        message = f"HTTP {got.status} without a Retry-After in seconds"
        return Outcome(error_class=ErrorClass.WRONG_STATUS, message=message)
    return Outcome()


def wait_as_told(user: PhasedUser, got: Exchange) -> None:
    """What a good client does after a refusal; one that found nobody waits too."""
    if refused(got):
        user.rest(retry_after(got) or 1.0)
    elif got.error_class is not None:
        user.rest()

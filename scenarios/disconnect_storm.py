"""Disconnect storm: users that hang up at random moments; before and after it a canary, and a look at what is held."""

from typing import ClassVar

from kvops.load.client import Leave
from kvops.load.exchange import Exchange
from kvops.load.injector import Canary
from kvops.load.locust_user import Outcome, register
from kvops.load.phased_user import PhasedUser, answer_or_refusal, wait_as_told
from kvops.load.phases import AFTER, BEFORE, CANARY, QUIET, STORM, Timetable
from kvops.load.records import ErrorClass
from kvops.load.workload import Workload, prompt, source_of

register(__file__)

PIECES = 20
"""Most pieces of an answer that a user takes in."""


class Caller(PhasedUser):
    asked = 0
    canary: ClassVar[Canary | None] = None

    def timetable(self) -> Timetable:
        options = self.session.options
        return Timetable.of(
            (BEFORE, 1.0), (STORM, options["storm_seconds"]), (QUIET, options["settle"]), (AFTER, 2.0)
        )  # fmt: skip

    def act(self, phase: str) -> None:
        if phase == STORM:
            self.hang_up()
        elif phase != QUIET and self.number == 0:
            Caller.canary = Caller.canary or Canary(self)
            Caller.canary.ask(f"{CANARY} {phase}")
            self.rest()
        else:
            self.rest()

    def hang_up(self) -> None:
        """Half of them at any time, half after some pieces of the answer."""
        source = source_of("storm", self.session.seed, self.number, self.asked)
        self.asked += 1
        tokens, most = Workload.of(self.session.options).draw(source)
        patience = self.session.options["patience"]
        pieces = source.randint(1, PIECES) if source.random() < 0.5 else None
        leave = Leave(after=patience if pieces else source.uniform(0.001, patience), deltas=pieces)
        got = self.chat(
            prompt(source, tokens), max_tokens=most, name=STORM, judge=left_or_answered, leave=leave,
            asked_input=tokens, ignore_eos=True,
        )  # fmt: skip
        wait_as_told(self, got)


def left_or_answered(got: Exchange) -> Outcome:
    if got.left:
        return Outcome(error_class=ErrorClass.CLIENT_CANCEL, message="hung up")
    return answer_or_refusal(got)

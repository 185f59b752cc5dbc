"""Whale and minnows: tiny requests alone, then beside users that send long prompts one after the other."""

from kvops.load.fairness import ALONE, BESIDE, ROLES
from kvops.load.locust_user import plain_answer, register
from kvops.load.phased_user import PhasedUser
from kvops.load.phases import Timetable
from kvops.load.workload import prompt, source_of

register(__file__)

ROLE = ROLES["whale_and_minnows"]


class Swimmer(PhasedUser):
    """The first users are whales, the others minnows."""

    asked = 0

    def timetable(self) -> Timetable:
        seconds = self.session.options["phase_seconds"]
        return Timetable.of((ALONE, seconds), (BESIDE, seconds))

    def act(self, phase: str) -> None:
        options = self.session.options
        if self.number >= options["whales"]:
            self.send(ROLE.name(phase), options["minnow_tokens"], options["max_tokens"])
        elif phase == BESIDE:
            self.send(ROLE.pressing, options["whale_tokens"], options["max_tokens"])
        else:
            self.rest()

    def send(self, name: str, tokens: int, most: int) -> None:
        source = source_of("swim", self.session.seed, self.number, self.asked)
        self.asked += 1
        got = self.chat(
            prompt(source, tokens), max_tokens=most, name=name, judge=plain_answer, asked_input=tokens,
            ignore_eos=True,
        )  # fmt: skip
        if got.error_class is not None:
            self.rest()

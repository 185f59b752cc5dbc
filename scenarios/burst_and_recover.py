"""Burst and recover: a few users, then a crowd far over capacity, then the few again."""

from kvops.load.locust_user import plain_answer, register
from kvops.load.phased_user import PhasedUser, answer_or_refusal, wait_as_told
from kvops.load.phases import BASELINE, BURST, RECOVERY, Timetable
from kvops.load.workload import Workload, prompt, source_of

register(__file__)


class Visitor(PhasedUser):
    """The first users are always there, the others come for the burst."""

    asked = 0

    def timetable(self) -> Timetable:
        options = self.session.options
        return Timetable.of(
            (BASELINE, options["baseline_seconds"]),
            (BURST, options["burst_seconds"]),
            (RECOVERY, options["recovery_seconds"]),
        )

    def act(self, phase: str) -> None:
        if phase != BURST and self.number >= self.session.options["base_users"]:
            return self.rest()
        source = source_of("burst", self.session.seed, self.number, self.asked)
        self.asked += 1
        tokens, most = Workload.of(self.session.options).draw(source)
        got = self.chat(
            prompt(source, tokens), max_tokens=most, name=phase, asked_input=tokens, ignore_eos=True,
            judge=plain_answer if phase == BASELINE else answer_or_refusal,
        )  # fmt: skip
        return wait_as_told(self, got)

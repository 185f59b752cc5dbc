"""Soak: a steady load for long, to see what drifts, leaks or fills up."""

from kvops.load.locust_user import PacedUser, Shot, plain_answer, register
from kvops.load.workload import Workload, prompt, source_of

register(__file__)


class Soaker(PacedUser):
    def ask(self, shot: Shot) -> None:
        source = source_of("soak", self.session.seed, shot.number)
        tokens, most = Workload.of(self.session.options).draw(
            source, shot.input_tokens, shot.output_tokens
        )
        self.chat(
            prompt(source, tokens, self.count), max_tokens=most, name="request", judge=plain_answer, shot=shot,
            asked_input=tokens, ignore_eos=True,
        )  # fmt: skip

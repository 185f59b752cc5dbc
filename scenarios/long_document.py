"""Long documents: prompts of a few lengths, one after the other, with short answers."""

from kvops.load.locust_user import PlanUser, plain_answer, register
from kvops.load.needle import counter
from kvops.load.workload import prompt, source_of

register(__file__)


class Reader(PlanUser):
    def on_start(self) -> None:
        self.count, _ = counter(self.client, self.session.endpoint.model)

    def plan(self) -> list[tuple[int, int]]:
        """Round by round, so that a change of the machine meets every length alike."""
        options = self.session.options
        return [
            (length, repeat)
            for repeat in range(options["repeats"])
            for length in sorted(set(options["lengths"]))
        ]

    def step(self, item: tuple[int, int]) -> None:
        length, repeat = item
        source = source_of("document", self.session.seed, length, repeat)
        self.chat(
            prompt(source, length, self.count), max_tokens=self.session.options["max_tokens"],
            name=f"{length} tokens", judge=plain_answer, asked_input=length, ignore_eos=True,
        )  # fmt: skip

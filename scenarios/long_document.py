"""Long documents: prompts of a few lengths, one after the other, with short answers."""

from kvops.load.locust_user import ListUser, Shot, plain_answer, register
from kvops.load.needle import counter
from kvops.load.workload import prompt, source_of

register(__file__)


class Reader(ListUser):
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

    def prepare(self, item: tuple[int, int]) -> tuple[int, str]:
        length, repeat = item
        source = source_of("document", self.session.seed, length, repeat)
        return length, prompt(source, length, self.count)

    def send(self, made: tuple[int, str], shot: Shot) -> None:
        length, text = made
        self.chat(
            text, max_tokens=self.session.options["max_tokens"], name=f"{length} tokens", judge=plain_answer,
            shot=shot, asked_input=length, ignore_eos=True,
        )  # fmt: skip

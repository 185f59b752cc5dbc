"""Shared prefix: groups of prompts that begin with the same document, as with retrieval or a long system prompt."""

from kvops.load.locust_user import ListUser, Shot, plain_answer, register
from kvops.load.workload import prompt, source_of

register(__file__)


class Asker(ListUser):
    def plan(self) -> list[tuple[int, int]]:
        """First one prompt of every group, then the next of each: a prefix is old when it is needed again."""
        options = self.session.options
        return [
            (group, number)
            for number in range(options["prompts"])
            for group in range(options["groups"])
        ]

    def prepare(self, item: tuple[int, int]) -> tuple[int, str]:
        options, (group, number) = self.session.options, item
        shared = prompt(source_of("prefix", self.session.seed, group), options["prefix_tokens"])
        own = prompt(
            source_of("question", self.session.seed, group, number), options["question_tokens"]
        )
        return group, f"{shared}\n\nAbout this: {own}"

    def send(self, made: tuple[int, str], shot: Shot) -> None:
        options, (group, text) = self.session.options, made
        self.chat(
            text, max_tokens=options["max_tokens"], name="prompt", judge=plain_answer, shot=shot,
            group=f"group {group}", asked_input=options["prefix_tokens"] + options["question_tokens"],
            ignore_eos=True,
        )  # fmt: skip

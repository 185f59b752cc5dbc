"""Needle recall: each user takes a prompt of the plan, asks it once, and scores the answer by substring."""

from typing import ClassVar

from kvops.load import needle
from kvops.load.exchange import Exchange
from kvops.load.haystack import Prompt
from kvops.load.locust_user import ListUser, Outcome, Shot, plain_answer, register
from kvops.load.records import ErrorClass

register(__file__)


class Seeker(ListUser):
    values: ClassVar[list[str]] = []
    """All numbers of the run: none but a prompt's own may turn up in its answer."""

    def on_start(self) -> None:
        self.count, self.exact = needle.counter(self.client, self.session.endpoint.model)

    def plan(self) -> list[needle.Cell]:
        options = self.session.options
        cells = needle.plan(
            self.session.seed, options["lengths"], options["depths"], options["repeats"]
        )
        Seeker.values = [cell.needle.value for cell in cells]
        return cells

    def prepare(self, cell: needle.Cell) -> tuple[needle.Cell, Prompt]:
        return cell, needle.prompt_for(cell, self.session.seed, self.count)

    def send(self, made: tuple[needle.Cell, Prompt], shot: Shot) -> None:
        cell, prompt = made
        self.chat(
            prompt.text,
            max_tokens=self.session.options["max_tokens"],
            name=cell.name,
            judge=lambda got: self.judge(cell, prompt, got),
            shot=shot,
        )

    def judge(self, cell: needle.Cell, prompt: Prompt, got: Exchange) -> Outcome:
        answered = plain_answer(got)
        score = needle.score(cell, prompt, got.text, self.values, exact=self.exact)
        if answered.error_class is not None:
            return Outcome(error_class=answered.error_class, message=answered.message, needle=score)
        if score.found == (cell.depth is not None):
            return Outcome(needle=score)
        message = (
            needle.not_recalled(got)
            if cell.depth is not None
            else "it gave a number of another prompt"
        )
        return Outcome(error_class=ErrorClass.WRONG_ANSWER, message=message, needle=score)

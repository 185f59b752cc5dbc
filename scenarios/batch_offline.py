"""Batch offline: a finite list of requests, worked off as fast as the node will; refused ones are asked again."""

import gevent

from kvops.load import priorities, refusals
from kvops.load.exchange import Exchange
from kvops.load.locust_user import Judge, PlanUser, plain_answer, register
from kvops.load.phased_user import answer_or_refusal
from kvops.load.workload import Workload, prompt, source_of

register(__file__)

ATTEMPTS = 20


class Worker(PlanUser):
    def on_start(self) -> None:
        self.workload = Workload.of(self.session.options)

    def plan(self) -> range:
        return range(self.session.options["requests"])

    def step(self, item: int) -> None:
        """A refusal that says when to come back is waited out; the last one counts as a failure."""
        for attempt in range(ATTEMPTS):
            last = attempt == ATTEMPTS - 1
            got = self.ask(item, plain_answer if last else answer_or_refusal)
            if not refusals.refused(got) or (wait := refusals.retry_after(got)) is None:
                return
            gevent.sleep(wait)

    def ask(self, item: int, judge: Judge) -> Exchange:
        source = source_of("batch", self.session.seed, item)
        fields = priorities.fields(self, self.session.options["priority"])
        tokens, most = self.workload.draw(source)
        return self.chat(
            prompt(source, tokens), max_tokens=most, name="request", judge=judge, asked_input=tokens,
            ignore_eos=True, **fields,
        )  # fmt: skip

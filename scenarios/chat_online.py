"""Online chat: sessions that arrive by a clock, each a few turns with pauses for thought, lengths mixed."""

import gevent

from kvops.load import refusals
from kvops.load.conversations import Conversation, pauses
from kvops.load.locust_user import PacedUser, Shot, plain_answer, register
from kvops.load.workload import Lengths, Workload, prompt, source_of

register(__file__)


class Chatter(PacedUser):
    def ask(self, shot: Shot) -> None:
        """One session. Only its first turn has a time in the schedule, and lengths in a trace; the others follow."""
        options, source = self.session.options, source_of("chat", self.session.seed, shot.number)
        workload, talk = Workload.of(options), Conversation()
        for turn in range(Lengths.parse(options["turns"]).draw(source)):
            if turn:
                gevent.sleep(pauses(source, options["think"]))
            told = (None, None) if turn else (shot.input_tokens, shot.output_tokens)
            tokens, most = workload.draw(source, *told)
            if turn and not talk.fits(tokens, most, self.session.endpoint.max_model_len):
                return
            got = self.chat(
                talk.ask(prompt(source, tokens, self.count)), max_tokens=most, name=f"turn {turn + 1}",
                judge=plain_answer, shot=None if turn else shot, asked_input=None if turn else tokens,
                ignore_eos=True,
            )  # fmt: skip
            if got.error_class is not None or refusals.refused(got):
                return
            talk.answered(got)

"""Agent loop: conversations that grow by an answer and a tool's result each turn, and send all of it again."""

from kvops.load import conversations
from kvops.load.locust_user import ListUser, Shot, plain_answer, register
from kvops.load.workload import source_of

register(__file__)


class Agent(ListUser):
    def plan(self) -> range:
        return range(self.session.options["loops"])

    def send(self, loop: int, shot: Shot) -> None:
        """A whole loop: only its first turn has a time in the schedule, the others follow their answers."""
        options, source = self.session.options, source_of("agent", self.session.seed, loop)
        talk = conversations.Conversation([conversations.system(source, options["system_tokens"])])
        text = conversations.task(source, options["task_tokens"])
        for turn in range(1, options["turns"] + 1):
            got = self.chat(
                talk.ask(text), max_tokens=options["max_tokens"], name=f"turn {turn}", judge=plain_answer,
                shot=shot if turn == 1 else None, group=f"loop {loop}", ignore_eos=True,
            )  # fmt: skip
            if got.error_class is not None:
                return
            talk.answered(got)
            if not talk.fits(
                options["tool_tokens"], options["max_tokens"], self.session.endpoint.max_model_len
            ):
                return
            text = conversations.tool_result(source, turn, options["tool_tokens"])

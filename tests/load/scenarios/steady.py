"""The plainest scenario that can be paced: one short question a shot."""

from kvops.load.locust_user import PacedUser, Shot, plain_answer, register

register(__file__)


class Asker(PacedUser):
    def ask(self, shot: Shot) -> None:
        if self.session.options["broken_at"] == shot.number:
            raise RuntimeError("the scenario is wrong here")
        self.chat(
            f"question {shot.number}",
            max_tokens=shot.output_tokens or 4,
            name="question",
            judge=plain_answer,
            shot=shot,
            group="even" if shot.number % 2 == 0 else "odd",
        )

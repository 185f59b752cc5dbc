"""Each user asks again as soon as its stream ends; a record's group is the number by which the server knows it."""

from kvops.load.locust_user import PacedUser, Shot, plain_answer, register

register(__file__)


class Reader(PacedUser):
    def ask(self, shot: Shot) -> None:
        number = str(shot.number)
        self.chat(number, max_tokens=64, name="stream", judge=plain_answer, group=number)

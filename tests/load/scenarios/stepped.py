"""In the midst of the run the wall clock of the process is set."""

import time

from kvops.load.locust_user import PacedUser, Shot, plain_answer, register

register(__file__)
BEFORE = time.time


class Asker(PacedUser):
    def ask(self, shot: Shot) -> None:
        if shot.number == 5:
            step = self.session.options["step"]
            time.time = lambda: BEFORE() + step
        self.chat("is it 17?", max_tokens=4, name="question", judge=plain_answer, shot=shot)

"""Ramp: closed-loop users 1, 2, 4 … N, each step held for a while, every prompt different."""

import itertools

from locust import LoadTestShape, task

from kvops.load.locust_user import NodeUser, plain_answer, register
from kvops.load.ramp import steps
from kvops.load.workload import prompt, source_of

register(__file__)

_numbers = itertools.count()


class Steps(LoadTestShape):
    """Holds each number of users for step_seconds; users beyond the step's number are stopped after their answer."""

    use_common_options = True
    users = 1

    def tick(self) -> tuple[int, float] | None:
        options = self.runner.environment.parsed_options
        session = NodeUser.session
        plan = steps(options.num_users or 1)
        elapsed = self.get_run_time()
        step = int(elapsed // session.options["step_seconds"])
        if step >= len(plan) or (options.run_time and elapsed >= options.run_time):
            return None
        Steps.users = plan[step]
        return plan[step], plan[step]


class Asker(NodeUser):
    @task
    def ask(self) -> None:
        options = self.session.options
        source = source_of("ramp", self.session.seed, self.session.worker, next(_numbers))
        self.chat(
            prompt(source, options["prompt_tokens"]),
            max_tokens=options["max_tokens"],
            name=f"{Steps.users} users",
            judge=plain_answer,
            asked_input=options["prompt_tokens"],
            ignore_eos=True,
        )

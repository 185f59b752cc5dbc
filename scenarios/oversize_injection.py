"""Oversize injection: one user sends each bad request, then a canary, then asks whether the node is alive."""

import os
import time
from collections.abc import Iterator
from typing import Any

import gevent

from kvops.load import injection, node_view
from kvops.load.exchange import Exchange
from kvops.load.locust_user import Outcome, PlanUser, register
from kvops.load.records import ErrorClass

register(__file__)

STEP_PATIENCE = 5.0
"""Seconds that the node's step counter may lag behind its answers."""


class Injector(PlanUser):
    canary_text: str | None = None

    def on_start(self) -> None:
        self.control = os.environ.get("KVOPS_CONTROL_URL"), os.environ.get("KVOPS_ADMIN_TOKEN")
        self.alive = "/health" if self.client.fetch("GET", "/livez").status == 404 else "/livez"
        self.canary("canary before all")

    def plan(self) -> Iterator[injection.Case]:
        endpoint, options = self.session.endpoint, self.session.options
        longest = options["max_prompt_tokens"]
        if endpoint.max_model_len is not None:
            for case in injection.length_cases(
                endpoint.model, endpoint.max_model_len, seed=self.session.seed
            ):
                if longest is None or case.prompt_tokens is None or case.prompt_tokens <= longest:
                    yield case
        yield from injection.broken_cases(endpoint.model, options["body_bytes"])

    def step(self, case: injection.Case) -> None:
        self.complete(
            "/v1/completions", case.body(), case.name, lambda got: wrong_status(case.judge(got))
        )
        self.canary(f"canary after {case.name}")
        self.get(self.alive, f"livez after {case.name}", is_alive)

    def canary(self, name: str) -> None:
        before = node_view.steps(*self.control)
        body = injection.canary(self.session.endpoint.model)
        self.complete(
            "/v1/chat/completions", body, name, lambda got: self.judge_canary(got, before)
        )

    def judge_canary(self, got: Exchange, before: int | None) -> Outcome:
        if got.error_class is not None:
            return Outcome(error_class=got.error_class, message=got.message)
        if not (got.text or got.usage.completion):
            return Outcome(
                error_class=ErrorClass.EMPTY_OUTPUT, message="the canary brought no token"
            )
        first, self.canary_text = self.canary_text, self.canary_text or got.text
        if first is not None and got.text != first:
            return Outcome(
                error_class=ErrorClass.WRONG_ANSWER,
                message="the canary's answer is not the one before",
            )
        if before is not None and not self.advanced(before):
            return Outcome(error_class=ErrorClass.NODE_DOWN, message="the engine finished no step")
        return Outcome()

    def advanced(self, before: int) -> bool:
        until = time.monotonic() + STEP_PATIENCE
        while time.monotonic() < until:
            if (node_view.steps(*self.control) or 0) > before:
                return True
            gevent.sleep(0.1)
        return False


def wrong_status(fault: str | None) -> Outcome:
    return (
        Outcome() if fault is None else Outcome(error_class=ErrorClass.WRONG_STATUS, message=fault)
    )


def is_alive(got: Exchange) -> Outcome:
    if got.status == 200:
        return Outcome()
    what: Any = f"HTTP {got.status}" if got.status is not None else got.error_class
    return Outcome(
        error_class=ErrorClass.NODE_DOWN, message=f"the node answers {what}: {got.message}"
    )

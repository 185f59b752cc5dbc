"""Users that send bad requests: after each a canary, and a look at whether the node is alive. Imports locust."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import gevent

from kvops.load import node_view
from kvops.load.exchange import Exchange
from kvops.load.injection import Case
from kvops.load.locust_session import Call
from kvops.load.locust_user import NodeUser, Outcome, PlanUser
from kvops.load.records import ErrorClass

STEP_PATIENCE = 5.0
"""Seconds that the node's step counter may lag behind its answers."""
QUESTION = "Say hello."
CANARY_TOKENS = 8


class Canary:
    """A short greedy chat whose answer must always be the same, and must cost the engine a step."""

    def __init__(self, user: NodeUser) -> None:
        self._user = user
        self._first: str | None = None
        self._control = os.environ.get("KVOPS_CONTROL_URL"), os.environ.get("KVOPS_ADMIN_TOKEN")

    def ask(self, name: str) -> Exchange:
        before = node_view.steps(*self._control)
        return self._user.chat(
            QUESTION,
            max_tokens=CANARY_TOKENS,
            name=name,
            judge=lambda got: self._judge(got, before),
        )

    def _judge(self, got: Exchange, before: int | None) -> Outcome:
        if got.error_class is not None:
            return Outcome(error_class=got.error_class, message=got.message)
        said = got.said.all
        if not (said or got.usage.completion):
            return _wrong(ErrorClass.EMPTY_OUTPUT, "the canary brought no token")
        first, self._first = self._first, self._first or said
        if first is not None and said != first:
            return _wrong(ErrorClass.WRONG_ANSWER, "the canary's answer is not the one before")
        if before is not None and not self._advanced(before):
            return _wrong(ErrorClass.NODE_DOWN, "the engine finished no step")
        return Outcome()

    def _advanced(self, before: int) -> bool:
        until = time.monotonic() + STEP_PATIENCE
        while time.monotonic() < until:
            if (node_view.steps(*self._control) or 0) > before:
                return True
            gevent.sleep(0.1)
        return False


class InjectingUser(PlanUser):
    """Its plan are Cases."""

    abstract = True

    def on_start(self) -> None:
        self.alive = "/health" if self.client.fetch("GET", "/livez").status == 404 else "/livez"
        self.canary = Canary(self)
        self.canary.ask("canary before all")

    def step(self, case: Case) -> None:
        client = self.client.with_headers({"Content-Type": case.content_type})
        call = Call(name=case.name, user=self.number, judge=_judge_by(case))
        self.session.send(client, case.path, case.body(), call)
        self.canary.ask(f"canary after {case.name}")
        self.get(self.alive, f"livez after {case.name}", is_alive)


def _judge_by(case: Case) -> Callable[[Exchange], Outcome]:
    def judge(got: Exchange) -> Outcome:
        fault = case.judge(got)
        return Outcome() if fault is None else _wrong(ErrorClass.WRONG_STATUS, fault)

    return judge


def is_alive(got: Exchange) -> Outcome:
    if got.status == 200:
        return Outcome()
    what: Any = f"HTTP {got.status}" if got.status is not None else got.error_class
    return _wrong(ErrorClass.NODE_DOWN, f"the node answers {what}: {got.message}")


def _wrong(error_class: ErrorClass, message: str) -> Outcome:
    return Outcome(error_class=error_class, message=message)

"""Ramp to the knee: one driver holds load after load, in users or in requests a second, until the knee is known."""

import time
from typing import Any

import gevent
from gevent.pool import Pool
from locust.user.task import LOCUST_STATE_STOPPING

from kvops.load import pacing, refusals
from kvops.load.knee import Outcome, Search
from kvops.load.knee_step import LEAST, Aims, decide
from kvops.load.locust_user import PlanUser, Shot, plain_answer, register
from kvops.load.pacing import Pacing
from kvops.load.records import RequestRecord
from kvops.load.slo import Slo
from kvops.load.statistics import minimum_samples
from kvops.load.workload import Workload, prompt, source_of

register(__file__)

LOOK = 0.2
STRETCH, PATIENCE = 5, 60.0
"""A step that is not decided goes on up to so many times its seconds, and so many seconds."""
MARGIN = 1.5
DRAIN, DRAIN_LEAST = 3, 30.0
"""And then waits so many times its seconds, so many seconds at least, for the answers."""


class Climber(PlanUser):
    def plan(self) -> list[str]:
        return ["the whole search"]

    def step(self, _: str) -> None:
        self.kept: list[RequestRecord] = []
        self.environment.events.request.add_listener(self.keep)
        self.workload = Workload.of(self.session.options)
        search, self.number_of_step = Search.of(self.session.options), 0
        while (load := search.next()) is not None and self.wanted():
            self.number_of_step += 1
            self.kept.clear()
            search.take(load, self.hold(load))

    def keep(self, context: dict[str, Any], **_: Any) -> None:
        self.kept.append(context["record"])

    def wanted(self) -> bool:
        return bool(self._state != LOCUST_STATE_STOPPING)

    def hold(self, load: float) -> Outcome:
        """Hold a load until it is judged, then wait for the answers in flight."""
        seconds = self.session.options["step_seconds"]
        aims = Aims(Slo.of(self.session.options), self.session.options["max_errors"])
        patience = max(seconds * STRETCH, PATIENCE, self.arrivals(load, aims.slo))
        crowd, self.until = Pool(), time.monotonic() + patience
        try:
            self.begin(load, crowd)
            started = time.monotonic()
            while self.going():
                gevent.sleep(LOOK)
                known = decide(self.kept, aims, at_end=False)
                sure = known == "good" or (known == "bad" and len(self.kept) >= LEAST)
                if sure and time.monotonic() >= started + seconds:
                    break
            self.until = 0.0
            crowd.join(max(seconds * DRAIN, DRAIN_LEAST))
        finally:
            crowd.kill()
        found = decide(self.kept, aims, at_end=True)
        return "unclear" if found == "open" else found

    def arrivals(self, load: float, slo: Slo) -> float:
        """Seconds in which a rate brings the requests that can decide a step."""
        if self.session.options["by"] == "users":
            return 0.0
        return MARGIN * minimum_samples(slo.percentile, 0, slo.confidence) / load

    def going(self) -> bool:
        return time.monotonic() < self.until and self.wanted()

    def begin(self, load: float, crowd: Pool) -> None:
        name = f"{load:g} {'requests/s' if self.session.options['by'] == 'rate' else 'users'}"
        if self.session.options["by"] == "rate":
            crowd.spawn(self.fire, load, name, crowd)
            return
        for place in range(round(load)):
            crowd.spawn(self.loop, name, place)

    def loop(self, name: str, place: int) -> None:
        """One user that asks, waits for its answer and asks again."""
        number = 0
        while self.going():
            got = self.ask(name, place, number, None)
            number += 1
            if refusals.refused(got):
                gevent.sleep(
                    min(refusals.retry_after(got) or 1.0, max(0.0, self.until - time.monotonic()))
                )
            elif got.error_class is not None:
                gevent.sleep(LOOK)

    def fire(self, rate: float, name: str, crowd: Pool) -> None:
        """Poisson arrivals that wait for nothing."""
        self.session.started, begin = time.time(), time.perf_counter()
        seed = self.session.seed * 1000 + self.number_of_step
        for shot in pacing.schedule(Pacing(kind="poisson", rate=rate), seed, None):
            while (left := begin + (shot.at or 0.0) - time.perf_counter()) > 0 and self.going():
                gevent.sleep(min(left, LOOK))
            if not self.going():
                return
            crowd.spawn(self.ask, name, -1, shot.number, shot)

    def ask(self, name: str, place: int, number: int, shot: Shot | None) -> Any:
        source = source_of("knee", self.session.seed, self.number_of_step, place, number)
        tokens, most = self.workload.draw(source)
        return self.chat(
            prompt(source, tokens), max_tokens=most, name=name, judge=plain_answer, shot=shot,
            group=str(self.number_of_step), asked_input=tokens, ignore_eos=True,
        )  # fmt: skip

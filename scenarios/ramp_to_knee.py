"""Ramp to the knee: one driver holds load after load, in users or in requests a second, until the knee is known."""

import itertools
import time
from typing import Any

import gevent
from gevent.pool import Pool
from locust.user.task import LOCUST_STATE_STOPPING

from kvops.load import clock, pacing, refusals
from kvops.load.knee import Outcome, Search
from kvops.load.knee_step import LEAST, Aims, decide, settled
from kvops.load.locust_user import PlanUser, Shot, plain_answer, register
from kvops.load.pacing import Pacing
from kvops.load.records import RequestRecord
from kvops.load.workload import Workload, prompt, source_of

register(__file__)

LOOK = 0.2
STRETCH, PATIENCE = 5, 60.0
"""A step that is not decided goes on up to so many times its seconds, and so many seconds."""
MANY, ASK_AGAIN = 500, 1.05
MARGIN = 1.5
DRAIN, DRAIN_LEAST = 3, 30.0
"""And then waits so many times its seconds, so many seconds at least, for the answers."""


class Climber(PlanUser):
    def plan(self) -> list[str]:
        return ["the whole search"]

    def step(self, _: str) -> None:
        self.kept: list[RequestRecord] = []
        self.under_way: dict[int, float] = {}
        self.numbers = itertools.count()
        self.environment.events.request.add_listener(self.keep)
        self.workload = Workload.of(self.session.options)
        search, self.number_of_step = Search.of(self.session.options), 0
        while (load := search.next()) is not None and self.wanted():
            self.number_of_step += 1
            self.kept.clear()
            self.judged = 0
            search.take(load, self.hold(load))

    def keep(self, context: dict[str, Any], **_: Any) -> None:
        self.kept.append(context["record"])

    def wanted(self) -> bool:
        return bool(self._state != LOCUST_STATE_STOPPING)

    def hold(self, load: float) -> Outcome:
        """Hold a load until it is judged, then wait for the answers in flight."""
        seconds = self.session.options["step_seconds"]
        aims = Aims.of(self.session.options)
        patience = max(seconds * STRETCH, PATIENCE, self.arrivals(load, aims))
        crowd, self.until = Pool(), time.monotonic() + patience
        try:
            self.begin(load, crowd)
            started = time.monotonic()
            while self.going():
                gevent.sleep(LOOK)
                if time.monotonic() >= started + seconds and self.is_sure(aims):
                    break
            self.until = 0.0
            crowd.join(max(seconds * DRAIN, DRAIN_LEAST))
        finally:
            crowd.kill()
        found = decide(self.kept, aims, at_end=True)
        return "unclear" if found == "open" else found

    def is_sure(self, aims: Aims) -> bool:
        """Of many requests it is asked again only when there are some more: it takes time that answers need."""
        ended = settled(self.kept, self.under_way.values(), aims)
        if len(ended) < max(LEAST, ASK_AGAIN * self.judged):
            return False
        self.judged = len(ended) if len(ended) > MANY else 0
        return decide(ended, aims, at_end=False) != "open"

    def arrivals(self, load: float, aims: Aims) -> float:
        """Seconds in which a rate brings the requests that can decide a step."""
        if self.session.options["by"] == "users":
            return 0.0
        return MARGIN * aims.least / load

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
        mine = next(self.numbers)
        self.under_way[mine] = clock.now()
        try:
            return self.chat(
                prompt(source, tokens), max_tokens=most, name=name, judge=plain_answer, shot=shot,
                group=str(self.number_of_step), asked_input=tokens, ignore_eos=True,
            )  # fmt: skip
        finally:
            del self.under_way[mine]

"""The session of a run inside one locust process: its options, what is in flight, and where its records go."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import gevent
import msgspec
import psutil

from kvops.load import clock, machine, pacing, runs
from kvops.load.client import Client, Leave
from kvops.load.counting import Counter
from kvops.load.endings import Ending
from kvops.load.endpoint import Endpoint
from kvops.load.exchange import Exchange, Usage
from kvops.load.pacing import Shot
from kvops.load.records import ClientSample, ErrorClass, NeedleScore, RequestRecord

TICK = 0.05
BACK_OFF = 0.2
"""Seconds before the next request of a user whose last ones found nobody: a closed loop would else spin."""
GONE_AFTER = 5.0
GONE_FAILURES = 3
"""So many requests in a row, over so many seconds, found nobody and none an answer: the node went away."""
_NOBODY = frozenset(
    {ErrorClass.CONNECT_REFUSED, ErrorClass.CONNECT_TIMEOUT, ErrorClass.CONNECTION_RESET}
)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a scenario makes of an answer. Without an error class the answer is the expected one."""

    error_class: ErrorClass | None = None
    message: str = ""
    needle: NeedleScore | None = None


Judge = Callable[[Exchange], Outcome]


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """What a scenario says of a request beside its body."""

    name: str
    user: int
    judge: Judge
    shot: Shot | None = None
    group: str = ""
    asked_input: int | None = None
    asked_output: int | None = None
    leave: Leave | None = None


OnEnd = Callable[[Ending, str], None]
"""Ends the whole run, with the reason. What is written is kept."""


class Sink(Protocol):
    """Where the lines of this process go. Raises OSError when they cannot be kept."""

    def record(self, record: RequestRecord) -> None: ...

    def sample(self, sample: ClientSample) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


class Session:
    """One run in this process. `worker` of `workers` processes."""

    def __init__(
        self,
        run: runs.RunInfo,
        environment: Any,
        endpoint: Endpoint,
        sink: Sink,
        on_end: OnEnd,
        worker: int = 0,
    ) -> None:
        self.info, self.environment, self.endpoint = run, environment, endpoint
        self.options, self.seed, self.pacing = run.options, run.seed, run.pacing
        self.worker, self.workers = worker, run.processes
        self.in_flight = 0
        self.started: float | None = None
        """Unix seconds at which the open-loop schedule began."""
        self.on_end = on_end
        self.counter: Counter | None = None
        """Where this machine has the model's tokenizer."""
        self._sink = sink
        self._numbers, self._shots = itertools.count(), itertools.count()
        self._late = 0.0
        self._nobody: list[float] = []

    def next_shot(self) -> int:
        """Number of the next shot of a closed loop, over all users and workers."""
        return next(self._shots) * self.workers + self.worker

    def schedule(self, most: int | None = None) -> Iterator[Shot]:
        """This worker's share of the open-loop schedule, or of its first `most` shots."""
        shots = pacing.schedule(self.pacing, self.seed, self.info.duration)
        return (
            shot
            for shot in itertools.islice(shots, most)
            if shot.number % self.workers == self.worker
        )

    def send(
        self, client: Client, path: str, body: dict[str, Any] | bytes | None, call: Call
    ) -> Exchange:
        """Send (a GET without a body), judge, report to locust and to disk. Raises nothing for a failed request."""
        exchange, number = Exchange(), self._next_number()
        outcome = Outcome(
            error_class=ErrorClass.CLIENT_CANCEL, message="the run ended before the answer"
        )
        intended = self._intended(call.shot)
        if intended is not None:
            self._late = max(self._late, clock.now() - intended)
        self.in_flight += 1
        try:
            client.complete(path, body, exchange, call.leave)
            outcome = self._judged(exchange, call)
            outcome = msgspec.structs.replace(outcome, message=client.clean(outcome.message))
        finally:
            self.in_flight -= 1
            self._report(self._record(exchange, outcome, call, number), exchange)
        self._look_for_the_node(exchange, wait=intended is None)
        return exchange

    def _judged(self, got: Exchange, call: Call) -> Outcome:
        """Counts that cannot be are no numbers of the run, and an answer that brings them is not a right one."""
        outcome = call.judge(got)
        wrong = got.usage.impossible(call.asked_output, self.endpoint.max_model_len)
        if wrong is None:
            return outcome
        got.usage = Usage()
        if outcome.error_class is not None:
            return outcome
        wrong_length = ErrorClass.LENGTH_MISMATCH
        return msgspec.structs.replace(outcome, error_class=wrong_length, message=wrong)

    def not_sent(self, shot: Shot, user: int) -> None:
        """Record a shot that was due while the client had no room for it."""
        message = f"{self.pacing.max_in_flight} requests were in flight: --max-in-flight"
        outcome = Outcome(error_class=ErrorClass.CLIENT_SATURATED, message=message)
        call = Call(name="not sent", user=user, judge=lambda _: outcome, shot=shot)
        exchange = Exchange(t_send=clock.now())
        self._report(self._record(exchange, outcome, call, self._next_number()), exchange)

    def _next_number(self) -> int:
        return next(self._numbers) * self.workers + self.worker

    def _intended(self, shot: Shot | None) -> float | None:
        if shot is None or shot.at is None or self.started is None:
            return None
        return self.started + shot.at

    def _report(self, record: RequestRecord, exchange: Exchange) -> None:
        self._keep(lambda: self._sink.record(record))
        self.environment.events.request.fire(
            request_type="POST",
            name=record.name,
            response_time=record.e2e * 1000,
            response_length=len(exchange.said.all),
            exception=RuntimeError(f"{record.error_class}: {record.error}")
            if record.failed
            else None,
            context={"ttft": record.ttft, "error_class": record.error_class, "record": record},
        )

    def _record(self, got: Exchange, outcome: Outcome, call: Call, number: int) -> RequestRecord:
        shot = call.shot or Shot(number)
        return RequestRecord(
            run=self.info.run, scenario=self.info.scenario, name=call.name, seq=number, user=call.user,
            t_intended=self._intended(call.shot), t_send=got.t_send, connect=got.connect, ttft=got.ttft,
            first_content=got.first_content, itl=got.gaps, last=got.deltas[-1] if got.deltas else None, e2e=got.e2e,
            prompt_tokens=got.usage.prompt, cached_tokens=got.usage.cached, completion_tokens=got.usage.completion,
            truncated_tokens=got.usage.truncated, status=got.status, finish_reason=got.finish_reason,
            error_class=outcome.error_class, error=outcome.message or None,
            expected=outcome.error_class is None, needle=outcome.needle, group=call.group,
            asked_input=shot.input_tokens if call.asked_input is None else call.asked_input,
            asked_output=shot.output_tokens if call.asked_output is None else call.asked_output,
            counted_tokens=self._counted(got),
            worker=self.worker,
        )  # fmt: skip

    def _counted(self, got: Exchange) -> int | None:
        """Of an answer that is text alone: marks of thinking and calls are tokens that no text shows."""
        if self.counter is None or not got.text or got.thinking or got.calls:
            return None
        return self.counter.count(got.text)

    def _look_for_the_node(self, got: Exchange, *, wait: bool) -> None:
        """Ends the run of a node that went away; slows a closed loop that finds nobody down."""
        if got.error_class not in _NOBODY or got.status is not None:
            self._nobody = []
            return
        self._nobody.append(time.monotonic())
        over = self._nobody[-1] - self._nobody[0]
        if len(self._nobody) >= GONE_FAILURES and over >= GONE_AFTER:
            said = f"the node went away: {len(self._nobody)} requests in a row found nobody over {over:.0f} s"
            self.on_end(Ending.NODE_GONE, f"{said}, the last: {got.message}")
        elif wait and len(self._nobody) > 1:
            gevent.sleep(BACK_OFF)

    def watch(self, parent: int | None) -> None:
        """Once a second: how busy and late this process is, who uses the machine, and whether its parent is there."""
        process = psutil.Process()
        # Until there is a user locust is still starting, which says nothing of how it will keep up.
        while not self.environment.runner.user_count and parent in (None, os.getppid()):
            gevent.sleep(TICK)
        process.cpu_percent()
        look = self._machine(parent)
        while parent in (None, os.getppid()):
            lag, until = 0.0, time.perf_counter() + 1
            while (before := time.perf_counter()) < until:
                gevent.sleep(TICK)
                lag = max(lag, time.perf_counter() - before - TICK)
            late, self._late = self._late, 0.0
            sample = ClientSample(
                at=clock.now(), users=self.environment.runner.user_count, in_flight=self.in_flight,
                cpu=process.cpu_percent() / 100, lag=max(0.0, lag), late=late, worker=self.worker, **look(),
            )  # fmt: skip
            self._keep(lambda sample=sample: self._sink.sample(sample))  # type: ignore[misc]
        self.environment.runner.quit()

    def _machine(self, parent: int | None) -> Callable[[], dict[str, Any]]:
        """What a sample tells of the machine beside this process. One of the workers tells it for all."""
        if self.worker:
            return dict
        seen = machine.Machine(parent or os.getpid(), machine.node_pid(self.info.target))
        return lambda: dict(seen.look())

    def _keep(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            self.on_end(Ending.DISK_FULL, f"the records cannot be written: {error}")

    def flush(self) -> None:
        self._sink.flush()

    def close(self) -> None:
        self._sink.close()

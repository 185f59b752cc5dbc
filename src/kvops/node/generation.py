"""One admitted HTTP request on its way through the engine: its choices, their news, its deadlines, its one end.

Whatever ends it (finished, client gone, deadline, engine death, operator), `close` runs once and leaves nothing
of it in the engine. How a request ended and how long its answer is, is what its client was told; what the engine
computed is counted apart.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from kvops import failpoints
from kvops.errors import InternalError, QueueTimeout, RequestCancelled, RequestError, RequestTimeout
from kvops.node.leak import leak
from kvops.node.meter import Meter, Outcome
from kvops.node.results import Events
from kvops.node.supervisor import Supervisor
from kvops.node.wire import FinishReason, PriorityClass, Submit, TokenDelta

log = structlog.get_logger("kvops.requests")


@dataclass(frozen=True)
class Event:
    choice: Choice
    delta: TokenDelta


class Choice:
    """One sequence of a request: the sink of one engine request."""

    def __init__(self, generation: Generation, index: int, submit: Submit) -> None:
        self._generation = generation
        self.index = index
        self.submit = submit
        self.created_at = time.monotonic()
        self.started_at: float | None = None
        self.last_token_at: float | None = None
        self.first_token_at: float | None = None
        self.tokens = 0
        """Computed by the engine, which may be past a stop string."""
        self.cached_tokens = 0
        self.finish: FinishReason | None = None
        """Why the engine is done with it."""
        self.answered = 0
        """Tokens of the answer, up to and including the one that completed a stop string."""
        self.told: FinishReason | None = None
        """The finish reason of the answer."""

    @property
    def request_id(self) -> str:
        return self.submit.request_id

    @property
    def received_at(self) -> float:
        return self._generation.received_at

    @property
    def unstarted(self) -> bool:
        return self.started_at is None and self.finish is None

    @property
    def waiting_since(self) -> float:
        """If it waits: since it came, or since it last moved."""
        return self.last_token_at or self.started_at or self.created_at

    def started(self) -> None:
        self.started_at = time.monotonic()
        self._generation.choice_started(self)

    def delta(self, delta: TokenDelta) -> None:
        self.cached_tokens = max(self.cached_tokens, delta.cached_tokens)
        if delta.token_ids:
            self._count(delta)
        if delta.finish is not None:
            self.finish = delta.finish
        self._generation.choice_moved(self, delta)

    def replay(self, delta: TokenDelta) -> None:
        """As `delta`, but nobody computed it now, so nothing is measured."""
        self.started_at = self.created_at
        self.cached_tokens = max(self.cached_tokens, delta.cached_tokens)
        self.tokens += len(delta.token_ids)
        self.finish = delta.finish

    def lost(self, error: RequestError) -> None:
        self._generation.fail(error)

    def _count(self, delta: TokenDelta) -> None:
        now = time.monotonic()
        gap = None if self.last_token_at is None else now - self.last_token_at
        if self.first_token_at is None:
            self.first_token_at = now
        self.last_token_at = now
        self.tokens += len(delta.token_ids)
        self._generation.meter.tokens(len(delta.token_ids), gap)


class Generation:
    def __init__(
        self,
        request_id: str,
        supervisor: Supervisor,
        meter: Meter,
        *,
        received_at: float,
        result_key: bytes | None,
        on_close: Callable[[Generation], None],
    ) -> None:
        """`result_key`: its answer is to be kept under this."""
        self.request_id = request_id
        self.result_key = result_key
        self.events: Events = []
        """All that came, where the answer is to be kept."""
        self.stored = False
        """It is answered with what an equal request got."""
        self.meter = meter
        self.received_at = received_at
        self.choices: list[Choice] = []
        self.first_event_at: float | None = None
        self._supervisor = supervisor
        self._on_close = on_close
        self._news: asyncio.Queue[Event | RequestError] = asyncio.Queue()
        self._timers: list[asyncio.TimerHandle] = []
        self._error: RequestError | None = None
        self._closed = False
        self._on_failure: Callable[[], None] = lambda: None

    @property
    def tenant(self) -> str:
        return self.choices[0].submit.tenant

    @property
    def priority(self) -> PriorityClass:
        return self.choices[0].submit.priority

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts; siblings of one prompt count it once."""
        return sum(len(c.submit.prompt_token_ids) for c in self.choices if c.submit.leader is None)

    @property
    def output_tokens(self) -> int:
        """Of the answer so far."""
        return sum(choice.answered for choice in self.choices)

    @property
    def cached_tokens(self) -> int:
        return sum(choice.cached_tokens for choice in self.choices if choice.submit.leader is None)

    @property
    def error_code(self) -> str | None:
        """Of the error that ended it."""
        return self._error.code if self._error else None

    def submit(
        self, submits: list[Submit], *, queue_timeout: float, request_timeout: float
    ) -> None:
        """Raises NotReady, EngineRestarted."""
        self.choices = [Choice(self, index, submit) for index, submit in enumerate(submits)]
        for choice in self.choices:
            self._supervisor.submit(choice.submit, choice)
        loop = asyncio.get_running_loop()
        self._timers = [
            loop.call_later(queue_timeout, self._queued_too_long, queue_timeout),
            loop.call_later(request_timeout, self._took_too_long, request_timeout),
        ]

    def replay(self, submits: list[Submit], events: Events) -> None:
        """Answer with what an equal request got; the engine is not asked."""
        self.stored = True
        self.first_event_at = time.monotonic()
        self.choices = [Choice(self, index, submit) for index, submit in enumerate(submits)]
        for index, delta in events:
            choice = self.choices[index]
            choice.replay(delta)
            self._news.put_nowait(Event(choice, delta))

    async def next(self) -> Event | None:
        """The next news; None once all choices ended. Safe to cancel. Raises the RequestError that ended it."""
        if self._answered:
            return None
        news = await self._news.get()
        if isinstance(news, RequestError):
            raise news
        if self.first_event_at is None:
            self.first_event_at = time.monotonic()
            self.meter.first_token(self.first_event_at - self.received_at, self.prompt_tokens)
        return news

    def tell(self, choice: Choice, tokens: int, finish: FinishReason | None) -> None:
        """What the answer to one choice has become; one that ended at a stop string ends in the engine too."""
        choice.answered, choice.told = tokens, finish
        if finish is not None and choice.finish is None:
            choice.finish = finish
            self._supervisor.cancel(choice.request_id)

    def when_failed(self, act: Callable[[], None]) -> None:
        """`act` runs once `fail` ends this, at once if it has already."""
        self._on_failure = act
        if self._error is not None:
            act()

    def fail(self, error: RequestError) -> None:
        """End all of it with an error, which goes out as a status or, after the first byte, as the last event."""
        if self._error is None and not self._closed:
            self._error = error
            self._cancel_choices()
            self._news.put_nowait(error)
            self._on_failure()

    def close(self) -> None:
        """Idempotent; without an end so far, the client went away."""
        if self._closed:
            return
        self._closed = True
        outcome = self.outcome
        self._cancel_choices()
        for timer in self._timers:
            timer.cancel()
        if failpoints.reach("request.ends.leaks"):
            leak()
        self._on_close(self)
        seconds = time.monotonic() - self.received_at
        if self.stored:
            self.meter.answered_from_store(outcome)
        elif isinstance(self._error, QueueTimeout):
            # Nothing of it was begun: it was turned away, only later than others.
            self.meter.rejected(self._error.code)
        else:
            self.meter.ended(outcome, seconds, self.prompt_tokens, self.output_tokens)
            self._measure_pace()
        log.info(
            "request",
            request_id=self.request_id,
            tenant=self.tenant,
            outcome=outcome,
            error=self.error_code,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            stored=self.stored,
            seconds=round(seconds, 4),
        )

    # News from the choices.

    def choice_started(self, choice: Choice) -> None:
        self.meter.started(time.monotonic() - choice.created_at)
        if choice.submit.leader is None:
            self.meter.prompt_read(len(choice.submit.prompt_token_ids))

    def choice_moved(self, choice: Choice, delta: TokenDelta) -> None:
        if delta.finish == "error":
            self.fail(InternalError(delta.error or "the engine could not go on with this request."))
        elif delta.finish == "cancelled":
            self.fail(RequestCancelled("the request was cancelled."))
        else:
            if self.result_key is not None:
                self.events.append((choice.index, delta))
            self._news.put_nowait(Event(choice, delta))

    def _queued_too_long(self, seconds: float) -> None:
        if all(choice.unstarted for choice in self.choices):
            self.fail(QueueTimeout(f"the request waited {seconds:g} s and was not started."))

    def _took_too_long(self, seconds: float) -> None:
        self.fail(RequestTimeout(f"the request was not done within {seconds:g} s."))

    def _cancel_choices(self) -> None:
        for choice in self.choices:
            if choice.finish is None:
                choice.finish = "cancelled"
                self._supervisor.cancel(choice.request_id)

    @property
    def outcome(self) -> Outcome:
        """How it would end if it ended now."""
        if isinstance(self._error, QueueTimeout | RequestTimeout):
            return "timeout"
        if isinstance(self._error, RequestCancelled):
            return "cancelled"
        if self._error is not None:
            return "error"
        if not self._answered:
            return "cancelled"
        return "length" if any(choice.told == "length" for choice in self.choices) else "stop"

    @property
    def _answered(self) -> bool:
        return all(choice.told is not None for choice in self.choices)

    def _measure_pace(self) -> None:
        for choice in self.choices:
            if (
                choice.tokens > 1
                and choice.first_token_at is not None
                and choice.last_token_at is not None
            ):
                span = choice.last_token_at - choice.first_token_at
                self.meter.per_token.observe(span / (choice.tokens - 1))

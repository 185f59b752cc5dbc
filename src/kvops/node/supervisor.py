"""Keeps one engine process alive: starts it, reads its frames, hands deltas to their requests, restarts it.

Every request in flight when the engine dies is told so. When the restart budget is spent, or the engine dies
before it ever was ready, `run` raises EngineDied: a node that cannot serve does not pretend to.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol

import msgspec
import structlog

from kvops.errors import EngineDied, EngineRestarted, NotReady, RequestError
from kvops.node.child import EngineChild
from kvops.node.totals import EngineTotals
from kvops.node.wire import (
    FROM_ENGINE,
    Cancel,
    EngineInfo,
    EngineStats,
    Fatal,
    Flushed,
    FlushPrefixCache,
    FrameBuffer,
    FromEngine,
    GetKvMap,
    KvMapReply,
    Loading,
    Prefix,
    Ready,
    Start,
    Started,
    StepDone,
    Submit,
    TokenDelta,
)
from kvops.telemetry.snapshot import KvMap

EngineState = Literal["loading", "ready", "restarting", "failed"]
RestartReason = Literal["killed", "exited", "fatal", "stalled", "protocol"]
RESTART_BUDGET = 5
RESTART_WINDOW = 600.0
_BACKOFF = 0.5
_BACKOFF_CAP = 30.0
_QUERY_TIMEOUT = 10.0

log = structlog.get_logger("kvops.supervisor")


class Sink(Protocol):
    """Where the news of one engine request go."""

    def started(self) -> None: ...

    def delta(self, delta: TokenDelta) -> None: ...

    def lost(self, error: RequestError) -> None: ...


class Supervisor:
    def __init__(
        self,
        start: Start,
        folder: Path,
        *,
        stall_after: float,
        on_step: Callable[[StepDone], None],
        on_phase: Callable[[str, str], None],
    ) -> None:
        self._start = start
        self._stall_after = stall_after
        self._on_step = on_step
        self._on_phase = on_phase
        self._child = EngineChild(folder / "engine.log")
        self._sinks: dict[str, Sink] = {}
        self._queries: dict[int, asyncio.Future[KvMap | int]] = {}
        self._query_id = 0
        self._stopping = False
        self._kill_reason: RestartReason | None = None
        self._fatal: Fatal | None = None
        self._recent_restarts: deque[float] = deque()
        self._progress_at = time.monotonic()
        self.state: EngineState = "loading"
        self.loading_phase = "starting"
        self.info: EngineInfo | None = None
        self.stats: EngineStats | None = None
        self.totals = EngineTotals()
        self.restarts: Counter[str] = Counter()
        self.ready = asyncio.Event()

    # What the rest of the daemon asks.

    @property
    def pid(self) -> int | None:
        return self._child.pid

    @property
    def work_pending(self) -> bool:
        return bool(self._sinks)

    def seconds_without_progress(self) -> float:
        """0 while nothing is pending; else the time since a step finished or the work arrived."""
        return time.monotonic() - self._progress_at if self._sinks else 0.0

    @property
    def stalled(self) -> bool:
        return self.state == "ready" and self.seconds_without_progress() > self._stall_after

    def start_with(self, prefixes: tuple[Prefix, ...]) -> None:
        """Have every engine from now on compute these before it is ready."""
        self._start = msgspec.structs.replace(self._start, prefixes=prefixes)

    def submit(self, request: Submit, sink: Sink) -> None:
        """Raises NotReady or EngineRestarted while there is no engine to take it."""
        if self.state != "ready":
            raise self.why_not_ready()
        if not self._sinks:
            self._progress_at = time.monotonic()
        self._sinks[request.request_id] = sink
        self._child.send(request)

    def why_not_ready(self) -> RequestError:
        if self.state == "restarting":
            return EngineRestarted("the engine is being restarted.")
        return NotReady(f"the model is being loaded ({self.loading_phase}).")

    def cancel(self, request_id: str) -> None:
        if self._sinks.pop(request_id, None) is not None:
            self._child.send(Cancel(request_id))

    async def kv_map(self, cells: int) -> KvMap:
        """Raises NotReady without an answering engine."""
        answer = await self._ask(lambda query: GetKvMap(query, cells))
        assert isinstance(answer, KvMap)
        return answer

    async def flush(self) -> int:
        """Drop unreferenced prefixes; the number of blocks freed. Raises NotReady."""
        answer = await self._ask(FlushPrefixCache)
        assert isinstance(answer, int)
        return answer

    # The life of the process.

    async def run(self) -> None:
        """Until `stop`. Raises EngineDied."""
        watchdog = asyncio.create_task(self._watch_progress())
        try:
            while not self._stopping:
                reason = await self._one_life()
                if not self._stopping:
                    await self._recover(reason)
        except EngineDied:
            self.state = "failed"
            raise
        finally:
            watchdog.cancel()

    async def stop(self) -> None:
        self._stopping = True
        await self._child.end()

    async def _one_life(self) -> RestartReason:
        self._fatal, self._kill_reason = None, None
        await self._child.spawn()
        self._child.send(self._start)
        try:
            await self._read_frames()
        except (ValueError, msgspec.DecodeError):
            self._kill_reason = "protocol"
            self._child.kill()
        code = await self._child.wait()
        died: RestartReason = self._kill_reason or ("killed" if code < 0 else "exited")
        return "fatal" if self._fatal is not None else died

    async def _read_frames(self) -> None:
        buffer = FrameBuffer()
        while data := await self._child.read():
            for body in buffer.feed(data):
                self._handle(FROM_ENGINE.decode(body))

    async def _recover(self, reason: RestartReason) -> None:
        """Tell everyone, count, wait. Raises EngineDied when there is no point in going on."""
        was_ready = self.ready.is_set()
        log.error(
            "engine_lost", reason=reason, code=self._child.returncode, in_flight=len(self._sinks)
        )
        self.state = "restarting"
        self._lose_all()
        if not was_ready:
            raise self._death(f"the engine ended while loading ({reason})")
        self.restarts[reason] += 1
        self.totals.carry(self.stats)
        self.stats = None
        now = time.monotonic()
        self._recent_restarts.append(now)
        while self._recent_restarts[0] < now - RESTART_WINDOW:
            self._recent_restarts.popleft()
        if len(self._recent_restarts) > RESTART_BUDGET:
            raise self._death(
                f"the engine ended {len(self._recent_restarts)} times in {RESTART_WINDOW / 60:.0f} min"
            )
        await asyncio.sleep(min(_BACKOFF * 2 ** (len(self._recent_restarts) - 1), _BACKOFF_CAP))

    def _lose_all(self) -> None:
        sinks, self._sinks = list(self._sinks.values()), {}
        for sink in sinks:
            sink.lost(
                EngineRestarted(
                    "the engine died while it worked on this request.", hint="Send it again."
                )
            )
        for query in self._queries.values():
            if not query.done():
                query.set_exception(NotReady("the engine died."))

    def _death(self, what: str) -> EngineDied:
        if self._fatal is not None:
            return EngineDied(f"[{self._fatal.code}] {self._fatal.message}", hint=self._fatal.hint)
        return EngineDied(f"{what}: {self._child.last_words()}", hint=f"read {self._child.log}")

    async def _watch_progress(self) -> None:
        """A hung engine is first reported (`stalled`), then, after twice the time, replaced."""
        while True:
            await asyncio.sleep(min(1.0, self._stall_after / 4))
            if self.state == "ready" and self.seconds_without_progress() > 2 * self._stall_after:
                self._kill_reason = "stalled"
                self._child.kill()

    # Frames.

    def _handle(self, message: FromEngine) -> None:
        match message:
            case Started():
                self._requests_started(message)
            case StepDone():
                self._step_done(message)
            case EngineStats():
                self._stats_arrived(message)
            case Loading():
                self.loading_phase = message.phase
                if not self.ready.is_set():
                    self._on_phase(message.phase, message.detail)
            case Ready():
                self.info = message.info
                self.state = "ready"
                self.ready.set()
            case KvMapReply():
                self._answer(message.query_id, message.map)
            case Flushed():
                self._answer(message.query_id, message.blocks)
            case Fatal():
                self._fatal = message

    def _requests_started(self, message: Started) -> None:
        for request_id in message.request_ids:
            if sink := self._sinks.get(request_id):
                sink.started()

    def _step_done(self, step: StepDone) -> None:
        self._progress_at = time.monotonic()
        for delta in step.deltas:
            sink = self._sinks.get(delta.request_id)
            if delta.finish is not None:
                self._sinks.pop(delta.request_id, None)
            if sink is not None:
                sink.delta(delta)
        self._on_step(step)

    def _stats_arrived(self, stats: EngineStats) -> None:
        if self.stats is None or stats.steps != self.stats.steps:
            self._progress_at = time.monotonic()
        self.stats = stats

    async def _ask(self, make: Callable[[int], GetKvMap | FlushPrefixCache]) -> KvMap | int:
        if self.state != "ready":
            raise self.why_not_ready()
        self._query_id += 1
        query = self._query_id
        future: asyncio.Future[KvMap | int] = asyncio.get_running_loop().create_future()
        self._queries[query] = future
        self._child.send(make(query))
        try:
            return await asyncio.wait_for(future, _QUERY_TIMEOUT)
        except TimeoutError:
            raise NotReady(f"the engine did not answer within {_QUERY_TIMEOUT:.0f} s.") from None
        finally:
            del self._queries[query]

    def _answer(self, query: int, value: KvMap | int) -> None:
        future = self._queries.get(query)
        if future is not None and not future.done():
            future.set_result(value)

"""Keeps one engine process alive: starts it, reads its frames, hands deltas to their requests, restarts it.

Every request in flight when the engine dies is told so. When the restart budget is spent, or the engine dies
before it ever was ready, `run` raises EngineDied: a node that cannot serve does not pretend to.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec
import structlog

from kvops.config.settings import Settings
from kvops.errors import (
    EngineRestarted,
    KvopsError,
    NotReady,
    RequestError,
)
from kvops.node.child import EngineChild
from kvops.node.deaths import RestartReason, cause_of, death, end_of_loading, reason_of
from kvops.node.pulse import Pulse
from kvops.node.queries import Queries
from kvops.node.quotas import with_quotas
from kvops.node.restarts import RestartBudget
from kvops.node.sinks import Sink, Sinks
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
    SetTenants,
    Start,
    Started,
    StepDone,
    Submit,
)
from kvops.telemetry.snapshot import KvMap

EngineState = Literal["loading", "ready", "restarting", "failed"]

log = structlog.get_logger("kvops.supervisor")


class Supervisor:
    def __init__(
        self,
        start: Start,
        folder: Path,
        settings: Settings,
        *,
        on_step: Callable[[StepDone], None],
        on_phase: Callable[[str, str], None],
        on_lost: Callable[[str], None],
    ) -> None:
        """`on_lost` hears why an engine died, before its requests do."""
        self._start = start
        self._settings = settings
        self._on_step = on_step
        self._on_phase = on_phase
        self._on_lost = on_lost
        self._child = EngineChild(folder / "engine.log")
        self._sinks = Sinks()
        self._queries = Queries(self._child.send)
        self._stopping = False
        self._kill_reason: RestartReason | None = None
        self._fatal: Fatal | None = None
        self._budget = RestartBudget(settings)
        self._pulse = Pulse(settings)
        self.state: EngineState = "loading"
        self.loading_phase = "starting"
        self.info: EngineInfo | None = None
        self.stats: EngineStats | None = None
        self.totals = EngineTotals()
        self.restarts: Counter[str] = Counter()
        self.ready = asyncio.Event()
        self._released, self._loaded = False, False

    # What the rest of the daemon asks.

    @property
    def pid(self) -> int | None:
        return self._child.pid

    @property
    def work_pending(self) -> bool:
        return len(self._sinks) > 0 or self._pulse.holds_work

    def seconds_without_progress(self) -> float:
        """Since a step finished or the work arrived; while nothing is pending, since a sign of life."""
        return self._pulse.seconds_without(self.work_pending)

    @property
    def stalled(self) -> bool:
        """Hung, whether it serves or loads."""
        return self._pulse.overdue(self.work_pending) > 0

    def start_with(self, prefixes: tuple[Prefix, ...]) -> None:
        """Have every engine from now on compute these before it is ready."""
        self._start = msgspec.structs.replace(self._start, prefixes=prefixes)

    def set_tenants(self, told: SetTenants) -> None:
        """From now on, of this engine and of each one to come. Raises ConfigError for a quota of no block."""
        start = msgspec.structs.replace(
            self._start, tenants=told.tenants, default_tenant=told.default_tenant
        )
        if self.info is not None:
            self.info = with_quotas(self.info, start.tenants, start.default_tenant)
        self._start = start
        self._child.send(told)

    def submit(self, request: Submit, sink: Sink) -> None:
        """Raises NotReady or EngineRestarted while there is no engine to take it."""
        if self.state != "ready":
            raise self.why_not_ready()
        if not self.work_pending:
            self._pulse.moved()
        self._sinks.add(request.request_id, sink)
        self._child.send(request)

    def why_not_ready(self) -> RequestError:
        if self.state == "restarting":
            return EngineRestarted("the engine is being restarted.")
        return NotReady(f"the model is being loaded ({self.loading_phase}).")

    def cancel(self, request_id: str) -> None:
        if self._sinks.remove(request_id):
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

    def release(self) -> None:
        """The files are what they shall be: a loaded engine may serve. Until then none is ready."""
        self._released = True
        self._become_ready()

    async def run(self) -> None:
        """Until `stop`. Raises EngineDied, or what the engine said of why it cannot load."""
        watchdog = asyncio.create_task(
            self._pulse.watch(lambda: self.work_pending, self._replace_hung)
        )
        try:
            while not self._stopping:
                reason = await self._one_life()
                if not self._stopping:
                    await self._recover(reason)
        except KvopsError:
            self.state = "failed"
            raise
        finally:
            watchdog.cancel()

    async def stop(self) -> None:
        """While it loads, an engine reads no message and holds nothing worth a wait."""
        self._stopping = True
        if self.info is None:
            self._child.kill()
        await self._child.end()

    async def _one_life(self) -> RestartReason:
        self._fatal, self._kill_reason, self._loaded = None, None, False
        await self._child.spawn()
        self._pulse.born()
        self._child.send(self._start)
        try:
            await self._read_frames()
        except (ValueError, msgspec.DecodeError):
            self._kill_reason = "protocol"
            self._child.kill()
        code = await self._child.wait()
        self._pulse.ended()
        return reason_of(code, self._fatal, self._kill_reason)

    async def _read_frames(self) -> None:
        buffer = FrameBuffer()
        while data := await self._child.read():
            for body in buffer.feed(data):
                self._handle(FROM_ENGINE.decode(body))

    async def _recover(self, reason: RestartReason) -> None:
        """Tell everyone, count, wait. Raises EngineDied when there is no point in going on."""
        was_ready = self.ready.is_set()
        fault = None if self._fatal is None else self._fatal.code
        code, in_flight = self._child.returncode, len(self._sinks)
        log.error("engine_lost", reason=reason, fault=fault, code=code, in_flight=in_flight)
        self.state = "restarting"
        self._on_lost(reason)
        self._lose_all()
        if not was_ready:
            what = end_of_loading(reason, self.loading_phase, self._settings)
            raise cause_of(self._fatal) or death(what, self._fatal, self._child)
        self.restarts[reason] += 1
        self.totals.carry(self.stats)
        self.stats = None
        pause = self._budget.spend()
        if pause is None:
            raise death(f"the engine ended {self._budget}", self._fatal, self._child)
        await asyncio.sleep(pause)

    def _lose_all(self) -> None:
        self._sinks.lose_all(
            EngineRestarted(
                "the engine died while it worked on this request.", hint="Send it again."
            )
        )
        self._queries.lose_all()

    def _replace_hung(self) -> None:
        self._kill_reason = "stalled"
        self._child.kill()

    # Frames.

    def _handle(self, message: FromEngine) -> None:
        self._pulse.heard()
        match message:
            case Started():
                self._sinks.started(message.request_ids)
            case StepDone():
                self._step_done(message)
            case EngineStats():
                self._stats_arrived(message)
            case Loading():
                self._loading(message)
            case Ready():
                # The engine may have started before its tenants changed.
                self.info = with_quotas(
                    message.info, self._start.tenants, self._start.default_tenant
                )
                self._loaded = True
                self._pulse.loaded()
                self._become_ready()
            case KvMapReply():
                self._queries.answer(message.query_id, message.map)
            case Flushed():
                self._queries.answer(message.query_id, message.blocks)
            case Fatal():
                self._fatal = message

    def _loading(self, message: Loading) -> None:
        """Without a detail it is a part of the phase that is done, and no line of the report."""
        self.loading_phase = message.phase
        if message.detail and not self.ready.is_set():
            self._on_phase(message.phase, message.detail)

    def _become_ready(self) -> None:
        if not self._released:
            self.loading_phase = "verifying the model"
        elif self._loaded:
            self._pulse.loaded()
            self.state = "ready"
            self.ready.set()

    def _step_done(self, step: StepDone) -> None:
        self._pulse.moved()
        self._sinks.moved(step.deltas)
        self._on_step(step)

    def _stats_arrived(self, stats: EngineStats) -> None:
        self._pulse.told(stats)
        self.stats = stats

    async def _ask(self, make: Callable[[int], GetKvMap | FlushPrefixCache]) -> KvMap | int:
        if self.state != "ready":
            raise self.why_not_ready()
        return await self._queries.ask(make)

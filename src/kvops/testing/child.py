"""In the place of an engine process: the scripted engine as a task of the node, speaking the same frames."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from kvops.models.tokenizer import load_tokenizer
from kvops.node import wire
from kvops.node.child import EngineChild
from kvops.node.secrecy import facts_of
from kvops.testing.engine import ScriptedEngine
from kvops.testing.mind import Mind

log = structlog.get_logger("kvops.engine")

STATS_EVERY = 0.2
HEARTBEAT = 0.5


class ScriptedChild(EngineChild):
    """One life after the other, as the supervisor asks for them."""

    def __init__(self, log: Path, defects: frozenset[str]) -> None:
        super().__init__(log)
        self._defects = defects
        self._code: int | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return None

    @property
    def returncode(self) -> int | None:
        return self._code

    @property
    def spoke(self) -> bool:
        return False

    def last_words(self) -> str:
        return f"exit code {self._code}"

    async def spawn(self) -> None:
        self._code = None
        self._inbox: asyncio.Queue[wire.ToEngine] = asyncio.Queue()
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue()
        self._task = asyncio.create_task(self._live())
        self._task.add_done_callback(self._broke)

    def send(self, message: wire.ToEngine) -> None:
        if self._task is not None:
            self._inbox.put_nowait(message)

    async def read(self) -> bytes:
        return await self._outbox.get()

    async def wait(self) -> int:
        assert self._task is not None
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({self._task})
        return self._code or 0

    async def end(self) -> None:
        self.kill()

    def kill(self) -> None:
        self._die(-9)

    def crash(self) -> None:
        """As an engine that a request kills."""
        self._die(-11)

    def _die(self, code: int) -> None:
        if self._task is not None and self._code is None:
            self._code = code
            self._task.cancel()
            self._outbox.put_nowait(b"")

    def _broke(self, task: asyncio.Task[None]) -> None:
        """An exception here is a defect of the script: the node shall see its engine die of it."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("scripted_engine_broke", **facts_of(error))
            self._die(1)

    async def _live(self) -> None:
        start = await self._inbox.get()
        assert isinstance(start, wire.Start)
        tokenizer = await asyncio.to_thread(load_tokenizer, Path(start.model_path))
        engine = ScriptedEngine(start, Mind(tokenizer, self._defects), self._defects)
        self._tell(wire.Ready(engine.info))
        await Service(engine, self._inbox, self._tell, self._defects).run()

    def _tell(self, message: wire.FromEngine) -> None:
        self._outbox.put_nowait(wire.frame(message))


class Service:
    """The engine's loop (as `kvops.node.engine.process.Service`): messages, a step, news of it."""

    def __init__(
        self,
        engine: ScriptedEngine,
        inbox: asyncio.Queue[wire.ToEngine],
        tell: Callable[[wire.FromEngine], None],
        defects: frozenset[str],
    ) -> None:
        self._engine, self._inbox, self._tell = engine, inbox, tell
        self._hangs = bool(defects & {"hangs", "healthy_while_hung"})
        self._stats_at = 0.0
        self._idle = False

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            busy = self._engine.has_work()
            self._report(busy)
            await self._take(0.0 if busy else HEARTBEAT)
            if self._engine.has_work():
                await self._step()

    async def _take(self, patience: float) -> None:
        """What has come in; waits up to `patience` seconds for the first."""
        if patience:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    self._handle(await self._inbox.get())
        while not self._inbox.empty():
            self._handle(self._inbox.get_nowait())

    async def _step(self) -> None:
        if self._hangs:
            await asyncio.Event().wait()
        began = time.perf_counter()
        batch, seconds = self._engine.begin()
        if batch.started:
            self._tell(wire.Started(tuple(request.request_id for request in batch.started)))
        await asyncio.sleep(seconds)
        took = time.perf_counter() - began
        deltas = self._engine.finish(batch, took)
        prefilled = sum(chunk.length for chunk in batch.prefills)
        if deltas or prefilled:
            self._tell(
                wire.StepDone(
                    seconds=took,
                    deltas=tuple(deltas),
                    prefill_tokens=prefilled,
                    decode_tokens=len(batch.decodes),
                )
            )

    def _report(self, busy: bool) -> None:
        fell_idle = not busy and not self._idle
        self._idle = not busy
        due = self._stats_at + (STATS_EVERY if busy else HEARTBEAT)
        if fell_idle or time.monotonic() >= due:
            self._tell(self._engine.stats())
            self._stats_at = time.monotonic()

    def _handle(self, message: wire.ToEngine) -> None:
        match message:
            case wire.Submit():
                self._engine.add(message)
            case wire.Cancel():
                self._engine.cancel(message.request_id)
            case wire.GetKvMap():
                self._tell(wire.KvMapReply(message.query_id, self._engine.kv_map(message.cells)))
            case wire.FlushPrefixCache():
                blocks = self._engine.flush_prefix_cache()
                self._tell(wire.Flushed(message.query_id, blocks))
            case wire.SetTenants():
                self._engine.set_tenants(message)
            case wire.Stop() | wire.Start():
                pass

"""The engine of a node without a model: the real scheduler and block pool, a script as model, a timer as work."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec

from kvops.node.engine.block_pool import BlockPool
from kvops.node.engine.kv_map import kv_map
from kvops.node.engine.pace import Pace
from kvops.node.engine.readings import kv_usage, prefix_cache
from kvops.node.engine.refusals import refusal
from kvops.node.engine.request import Request
from kvops.node.engine.scheduler import Batch, Bounds, Chunk, Scheduler
from kvops.node.engine.tenants import Tenants
from kvops.node.quotas import with_quotas
from kvops.node.wire import (
    EngineInfo,
    EngineStats,
    FinishReason,
    SetTenants,
    Start,
    Submit,
    TokenDelta,
)
from kvops.telemetry.snapshot import KvMap, MemoryLedger
from kvops.testing.mind import Mind
from kvops.testing.timing import Stopwatch
from kvops.testing.words import spec

GIB = 2**30
BLOCK_BYTES = 65536
_OTHER = 320 * 2**20
_EATEN = 64 * 2**10
"""Bytes of each request that are never given back."""


class ScriptedEngine:
    def __init__(self, start: Start, mind: Mind, defects: frozenset[str]) -> None:
        assert start.pool.blocks is not None
        self.info = with_quotas(_info(start, mind), start.tenants, start.default_tenant)
        self._defects = defects
        self._mind = mind
        self._pool = BlockPool(
            start.pool.blocks, start.pool.block_size, prefix_caching=start.pool.prefix_caching
        )
        self._tenants = Tenants.of(start, self.info)
        at_once = 1 if "serves_one_by_one" in defects else start.max_batch_size
        bounds = Bounds(at_once, start.max_batched_tokens, start.pool.watermark)
        self._pace = Pace(None, start.max_batched_tokens)
        self._scheduler = Scheduler(self._pool, bounds, tenants=self._tenants, pace=self._pace)
        self._stopwatch = Stopwatch(defects)
        self._answers: dict[str, Iterator[int | None]] = {}
        self._outbox: list[TokenDelta] = []
        self._hoard: list[bytearray] = []
        self._arrivals = self._steps = 0
        self._last_step_at: float | None = None

    # What the node asks of it.

    def add(self, submit: Submit) -> None:
        if fault := refusal(submit, self.info):
            self._outbox.append(
                TokenDelta(request_id=submit.request_id, finish="error", error=fault)
            )
            return
        if "cross_tenant_hits" in self._defects:
            submit = _without_salt(submit)
        request = Request.from_submit(submit, self._arrivals)
        self._answers[submit.request_id] = self._mind.answer(submit, self._others())
        self._scheduler.add(request)
        self._arrivals += 1
        self._stopwatch.arrived(len(self._scheduler.waiting))

    def cancel(self, request_id: str) -> None:
        if "leaks_after_disconnect" in self._defects:
            return
        if self._scheduler.cancel(request_id):
            self._answers.pop(request_id, None)
            self._outbox.append(TokenDelta(request_id=request_id, finish="cancelled"))

    def set_tenants(self, told: SetTenants) -> None:
        self.info = with_quotas(self.info, told.tenants, told.default_tenant)
        self._tenants.set(told.tenants, told.default_tenant, self.info)
        self._scheduler.look_again()

    def has_work(self) -> bool:
        return bool(self._outbox) or self._scheduler.has_work()

    def kv_map(self, cells: int) -> KvMap:
        return kv_map(self._pool, cells)

    def flush_prefix_cache(self) -> int:
        return self._pool.flush()

    def _others(self) -> int:
        return len(self._scheduler.running) + len(self._scheduler.waiting)

    # A step, in two halves: what it will compute and how long that takes; then what came of it.

    def begin(self) -> tuple[Batch, float]:
        """The next batch and the seconds that it takes."""
        batch = self._scheduler.schedule()
        return batch, self._stopwatch.seconds(batch) if batch.chunks else 0.0

    def finish(self, batch: Batch, seconds: float) -> list[TokenDelta]:
        deltas, self._outbox = self._outbox, []
        if batch.chunks:
            deltas += self._advanced(batch)
            self._steps += 1
            self._last_step_at = time.time()
            prefilled = sum(chunk.length for chunk in batch.prefills)
            self._pace.observe(seconds, len(batch.decodes), prefilled)
        return deltas

    def _advanced(self, batch: Batch) -> list[TokenDelta]:
        deltas = []
        for chunk in batch.chunks:
            samples = chunk.samples
            self._scheduler.computed(chunk)
            if samples:
                deltas.append(self._next_token(chunk))
        return deltas

    def _next_token(self, chunk: Chunk) -> TokenDelta:
        request = chunk.request
        first = request.first_token_at is None
        if first:
            request.first_token_at = time.monotonic()
        token = next(self._answers[request.request_id])
        if token is not None:
            request.tokens.append(token)
        finish = _finish_reason(request, token)
        if finish is not None:
            self._end(request)
        return TokenDelta(
            request_id=request.request_id,
            token_ids=() if token is None else (token,),
            finish=finish,
            cached_tokens=request.cached_tokens if first else 0,
        )

    def _end(self, request: Request) -> None:
        del self._answers[request.request_id]
        if "leaks_block_per_request" in self._defects and self._pool.available:
            self._pool.allocate(1)
        self._scheduler.finish(request)
        if "eats_memory" in self._defects:
            self._hoard.append(bytearray(b"x" * _EATEN))
        if "thrashes" in self._defects:
            self._pool.evictions += self._pool.flush()

    # What it tells of itself.

    def stats(self) -> EngineStats:
        now = time.monotonic()
        return EngineStats(
            at=time.time(),
            steps=self._steps,
            last_step_at=self._last_step_at,
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting),
            kv=kv_usage(self._scheduler, BLOCK_BYTES),
            prefix_cache=prefix_cache(self._scheduler),
            memory=self._ledger(),
            requests=tuple(request.row(now) for request in self._scheduler),
            tenant_blocks=self._tenants.held(),
            invariant_violations=0,
        )

    def _ledger(self) -> MemoryLedger:
        total, weights, activations = 8 * GIB, GIB, 64 * 2**20
        reserved = self._pool.total * BLOCK_BYTES
        other = _OTHER
        if "memory_full" in self._defects:
            other = int(0.97 * total) - weights - reserved - activations
        free = total - weights - reserved - activations - other
        return MemoryLedger(
            "cpu", total, weights, reserved, activations, other, free,
            self._pool.used * BLOCK_BYTES, self._pool.cached * BLOCK_BYTES,
        )  # fmt: skip


def _finish_reason(request: Request, token: int | None) -> FinishReason | None:
    if token is None:
        return "stop"
    return "length" if request.generated == request.params.max_tokens else None


def _without_salt(submit: Submit) -> Submit:
    return msgspec.structs.replace(submit, salt=b"")


def _info(start: Start, mind: Mind) -> EngineInfo:
    assert start.pool.blocks is not None
    model = spec(mind.vocabulary)
    asked = start.max_context_length or model.max_context_length
    return EngineInfo(
        spec=model,
        parameters=1_000_000,
        weights_dtype="float32",
        kv_dtype="float32",
        device="cpu",
        max_model_len=min(
            model.max_context_length, asked, start.pool.blocks * start.pool.block_size
        ),
        pool_blocks=start.pool.blocks,
        block_size=start.pool.block_size,
        bytes_per_block=BLOCK_BYTES,
    )

"""The engine: takes token ids in, gives token ids out, one step at a time. Owns pool, scheduler and runner.

Every request that is added ends in exactly one delta with a finish reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from torch import OutOfMemoryError

from kvops import failpoints
from kvops.errors import ConfigError, NodeStartError
from kvops.node.engine.block_pool import BlockPool
from kvops.node.engine.kv_map import kv_map
from kvops.node.engine.loading import Loaded, Progress, load
from kvops.node.engine.memory import peak_of
from kvops.node.engine.pace import Pace
from kvops.node.engine.prefixes import PrefixNames
from kvops.node.engine.readings import kv_usage, prefix_cache
from kvops.node.engine.refusals import refusal
from kvops.node.engine.request import Request
from kvops.node.engine.reserve import Reserve
from kvops.node.engine.sampler import Sample
from kvops.node.engine.scheduler import Batch, Bounds, Chunk, Counters, Scheduler
from kvops.node.engine.signs import Signs
from kvops.node.engine.tenants import Tenants
from kvops.node.quotas import with_quotas
from kvops.node.sampling import SamplingParams
from kvops.node.wire import (
    EngineInfo,
    EngineStats,
    FinishReason,
    Prefix,
    Start,
    StepDone,
    Submit,
    TenantLimits,
    TokenDelta,
)
from kvops.telemetry.snapshot import KvMap

Announce = Callable[[tuple[str, ...]], None]

_NO_MEMORY = "the device had no memory left for the step"
_WARM_UP_PROMPT = 64
_MEASURED_PROMPT = 512
"""Where a step's memory is not counted beforehand, a large one has to show what it takes."""
_WARM_UP_TOKENS = 4


class Engine:
    def __init__(self, loaded: Loaded, start: Start) -> None:
        self.info: EngineInfo = with_quotas(loaded.info, start.tenants, start.default_tenant)
        self._tenants = Tenants.of(start, self.info)
        self._runner = loaded.runner
        self._accounts = loaded.accounts
        self._pool = BlockPool(
            loaded.info.pool_blocks, start.pool.block_size, prefix_caching=start.pool.prefix_caching
        )
        self._pace = Pace(start.max_prefill_tokens, start.max_batched_tokens)
        self._scheduler = Scheduler(
            self._pool,
            _bounds(start),
            tenants=self._tenants,
            names=PrefixNames(
                start.pool.block_size, (one.token_ids for one in start.prefixes if one.shared)
            ),
            pace=self._pace,
        )
        self._outbox: list[TokenDelta] = []
        """Ends of requests that no step brought about: refused or cancelled."""
        self._arrivals = 0
        self._steps = 0
        self._last_step_at: float | None = None
        self._violations = 0
        self._moved: Callable[[], None] = lambda: None
        """Called for each step of a warm-up."""

    @classmethod
    def load(cls, start: Start, progress: Progress, reserve: Reserve | None = None) -> Engine:
        """Load and warm up. Raises ConfigError, NodeStartError or a ModelError."""
        engine = cls(load(start, progress, reserve), start)
        began = time.perf_counter()
        engine._moved = Signs(progress, "warming up")
        engine._warm_up(start.max_batched_tokens)
        progress("warm-up generation", f"{time.perf_counter() - began:.1f} s")
        if start.prefixes:
            progress("prefixes", f"{engine._warm_prefixes(start.prefixes)} blocks are hot")
        return engine

    def add(self, submit: Submit) -> None:
        """Queue a request. One that can never be served ends with an error delta in the next step."""
        if fault := self._refusal(submit):
            self._outbox.append(
                TokenDelta(request_id=submit.request_id, finish="error", error=fault)
            )
            return
        self._scheduler.add(Request.from_submit(submit, self._arrivals))
        self._arrivals += 1

    def cancel(self, request_id: str) -> None:
        """End a request and free its blocks at once; one that has ended already is left alone."""
        if self._scheduler.cancel(request_id):
            self._outbox.append(TokenDelta(request_id=request_id, finish="cancelled"))

    def set_tenants(self, tenants: Mapping[str, TenantLimits], default: TenantLimits) -> None:
        """For requests to come; those that are here keep at least the quota that they came under."""
        self.info = with_quotas(self.info, tenants, default)
        self._tenants.set(tenants, default, self.info)
        self._scheduler.look_again()

    def has_work(self) -> bool:
        return bool(self._outbox) or self._scheduler.has_work()

    def step(self, announce: Announce | None = None) -> StepDone:
        """Compute the next batch, if there is one, and tell what became of the requests.

        `announce` gets the ids of requests that start for the first time, before anything is computed.
        """
        began = time.perf_counter()
        deltas, self._outbox = self._outbox, []
        batch = self._scheduler.schedule()
        if batch.started and announce is not None:
            announce(tuple(request.request_id for request in batch.started))
        prefill_tokens = sum(chunk.length for chunk in batch.prefills)
        if batch.chunks:
            deltas += self._compute(batch)
            self._steps += 1
            self._last_step_at = time.time()
            self._pace.observe(time.perf_counter() - began, len(batch.decodes), prefill_tokens)
        return StepDone(
            seconds=time.perf_counter() - began,
            deltas=tuple(deltas),
            prefill_tokens=prefill_tokens,
            decode_tokens=len(batch.decodes),
            out_of_memory=any(delta.error == _NO_MEMORY for delta in deltas),
        )

    def stats(self) -> EngineStats:
        now = time.monotonic()
        pool, size = self._pool, self.info.bytes_per_block
        return EngineStats(
            at=time.time(),
            steps=self._steps,
            last_step_at=self._last_step_at,
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting),
            kv=kv_usage(self._scheduler, self.info.bytes_per_block),
            prefix_cache=prefix_cache(self._scheduler),
            memory=self._accounts.ledger(kv_used=pool.used * size, kv_cached=pool.cached * size),
            requests=tuple(request.row(now) for request in self._scheduler),
            tenant_blocks=self._tenants.held(),
            invariant_violations=self._violations,
        )

    def kv_map(self, cells: int) -> KvMap:
        """The pool drawn with at most `cells` letters."""
        return kv_map(self._pool, cells)

    def flush_prefix_cache(self) -> int:
        """Forget cached prefixes; how many blocks became free."""
        return self._pool.flush()

    def check(self) -> list[str]:
        """Faults of the block pool, in words. They are counted."""
        faults = self._scheduler.check()
        self._violations += len(faults)
        return faults

    def _refusal(self, submit: Submit) -> str:
        if submit.request_id in self._scheduler:
            return f"request id {submit.request_id!r} is in use"
        return refusal(submit, self.info)

    def _compute(self, batch: Batch) -> list[TokenDelta]:
        """A batch without the memory for it ends, and the engine goes on."""
        failpoints.reach("engine.step.raises")
        failpoints.reach("engine.step.hangs")
        try:
            if failpoints.reach("engine.allocation.fails"):
                raise OutOfMemoryError("failpoint engine.allocation.fails")
            samples = self._runner.run(batch)
        except OutOfMemoryError:
            return [self._give_up(chunk) for chunk in batch.chunks]
        return self._record(batch, samples)

    def _give_up(self, chunk: Chunk) -> TokenDelta:
        self._scheduler.finish(chunk.request)
        return TokenDelta(request_id=chunk.request.request_id, finish="error", error=_NO_MEMORY)

    def _record(self, batch: Batch, samples: list[Sample]) -> list[TokenDelta]:
        deltas, following = [], iter(samples)
        for chunk in batch.chunks:
            samples_now = chunk.samples
            self._scheduler.computed(chunk)
            if samples_now:
                deltas.append(self._advance(chunk.request, next(following)))
        return deltas

    def _advance(self, request: Request, sample: Sample) -> TokenDelta:
        """Append the sampled token to its request, and end the request where that is due."""
        first = request.first_token_at is None
        if first:
            request.first_token_at = time.monotonic()
        finish = self._finish_reason(request, sample)
        stopped = finish == "stop"
        kept = sample.token is not None and not stopped
        if kept and sample.token is not None:
            request.tokens.append(sample.token)
        if finish == "error":
            self._scheduler.disown(request)
        if finish is not None:
            self._scheduler.finish(request)
        return TokenDelta(
            request_id=request.request_id,
            token_ids=(sample.token,) if kept and sample.token is not None else (),
            logprobs=(sample.logprobs,) if kept and sample.logprobs is not None else (),
            finish=finish,
            stop_token_id=sample.token if stopped else None,
            cached_tokens=request.cached_tokens if first else 0,
            error="the model gave no finite number for the next token" if finish == "error" else "",
        )

    def _finish_reason(self, request: Request, sample: Sample) -> FinishReason | None:
        if sample.token is None:
            return "error"
        if self._runner.sampler.stops(request, sample.token):
            return "stop"
        return "length" if request.generated + 1 == request.params.max_tokens else None

    def _warm_up(self, max_batched_tokens: int) -> None:
        """A real generation, so that the first client meets no cold path; it leaves no trace but its memory peak."""
        room = self.info.max_model_len - _WARM_UP_TOKENS
        wanted = _WARM_UP_PROMPT if self._accounts.buffers else _MEASURED_PROMPT
        length = max(1, min(wanted, max_batched_tokens, room))
        params = SamplingParams(
            max_tokens=min(_WARM_UP_TOKENS, self.info.max_model_len - length),
            temperature=0,
            ignore_eos=True,
        )
        prompt = tuple(index % self.info.spec.vocab_size for index in range(length))
        self.add(
            Submit(
                request_id="warm-up", prompt_token_ids=prompt, params=params, tenant="", salt=b""
            )
        )
        peak = peak_of(self._accounts.device, self._drain)
        # A larger step may have been measured while the model was loaded.
        activations = max(self._accounts.activations, self._accounts.buffers + peak)
        self._accounts = replace(self._accounts, activations=activations)
        self._pool.flush()
        self._forget_counts()

    def _warm_prefixes(self, prefixes: tuple[Prefix, ...]) -> int:
        """Compute the blocks of prefixes; how many are cached then. Raises ConfigError for one that never fits."""
        for prefix in prefixes:
            submit = prefix.submit(f"prefix {prefix.name}")
            if fault := self._refusal(submit):
                raise ConfigError(
                    f"the prefix {prefix.name} of tenant {prefix.tenant!r}: {fault}",
                    hint="shorten it, or raise what bounds it",
                )
            self.add(submit)
            self._drain()
        self._forget_counts()
        return self._pool.cached

    def _forget_counts(self) -> None:
        """What the engine did for itself is none of its work for others."""
        self._pool.evictions = 0
        self._scheduler.counters = Counters()
        self._steps, self._last_step_at = 0, None

    def _drain(self) -> None:
        """Raises NodeStartError if there is not enough memory."""
        while self.has_work():
            if self.step().out_of_memory:
                raise NodeStartError(_NO_MEMORY, hint="lower runtime.max_batched_tokens")
            self._moved()


def _bounds(start: Start) -> Bounds:
    return Bounds(
        start.max_batch_size,
        start.max_batched_tokens,
        start.pool.watermark,
        start.batch_max_load,
    )

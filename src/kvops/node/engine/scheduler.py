"""Who computes how many tokens in the next step: decodes first, then prefill chunks, oldest first.

Invariants: a request runs only with blocks for all its tokens; the oldest request of the best class is never
preempted, so every step makes progress; a request that could not fit an empty pool never gets in here.
"""

from __future__ import annotations

import math
import time
from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from kvops.node.engine.block_pool import ROOT, BlockPool, block_content, block_digest
from kvops.node.engine.request import Request


@dataclass(frozen=True, slots=True)
class Chunk:
    """`length` tokens of a request to compute, from `start` on."""

    request: Request
    start: int
    length: int

    @property
    def samples(self) -> bool:
        """The chunk reaches the request's last token, so its output chooses the next one."""
        return self.start + self.length == len(self.request.tokens)


@dataclass(frozen=True, slots=True)
class Batch:
    decodes: tuple[Chunk, ...]
    prefills: tuple[Chunk, ...]
    started: tuple[Request, ...] = ()
    """Requests that left the waiting queue for the first time."""

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        return self.decodes + self.prefills


@dataclass(slots=True)
class Counters:
    preemptions: int = 0
    query_tokens: int = 0
    hit_tokens: int = 0


@dataclass(eq=False)
class Scheduler:
    pool: BlockPool
    max_batch_size: int
    max_batched_tokens: int
    watermark: float = 0.01
    waiting: list[Request] = field(default_factory=list)
    """Sorted by `Request.order`."""
    running: list[Request] = field(default_factory=list)
    """Sorted by `Request.order`: the last is the first to be preempted."""
    counters: Counters = field(default_factory=Counters)
    _by_id: dict[str, Request] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._max_running = min(self.max_batch_size, self.max_batched_tokens)
        self._reserve = math.ceil(self.pool.total * self.watermark)

    def __iter__(self) -> Iterator[Request]:
        yield from self.running
        yield from self.waiting

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._by_id

    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def add(self, request: Request) -> None:
        self._by_id[request.request_id] = request
        insort(self.waiting, request, key=_order)

    def cancel(self, request_id: str) -> bool:
        """End the request now and free its blocks. False if there is no such request."""
        request = self._by_id.get(request_id)
        if request is not None:
            self.finish(request)
        return request is not None

    def finish(self, request: Request) -> None:
        (self.waiting if request in self.waiting else self.running).remove(request)
        del self._by_id[request.request_id]
        self._release(request)

    def disown(self, request: Request) -> None:
        """Keep others from reusing what the request computed: its numbers are not to be trusted."""
        self.pool.disown(request.table)

    def schedule(self) -> Batch:
        """The next step's work; empty only if there is none."""
        preempted = self.counters.preemptions
        decodes = self._decodes()
        # A request preempted a moment ago would be first to get back in, and be thrown out again.
        started = self._admit() if self.counters.preemptions == preempted else []
        prefills = self._prefills(self.max_batched_tokens - len(decodes))
        return Batch(tuple(decodes), tuple(prefills), tuple(started))

    def computed(self, chunk: Chunk) -> None:
        """Record that a chunk's keys and values are in the pool, and make its full blocks findable."""
        request = chunk.request
        request.computed += chunk.length
        if request.computed == len(request.tokens):
            request.state = "decode"
        full = request.computed // self.pool.block_size
        self._hash(request, full)
        for index in range(request.committed, full):
            self.pool.commit(
                request.table[index], request.digests[index], self._content(request, index)
            )
        request.committed = full

    def check(self) -> list[str]:
        return self.pool.check(request.table for request in self)

    def _decodes(self) -> list[Chunk]:
        # A copy: growing one request may preempt others, which leaves them out of `running` and not in "decode".
        return [
            Chunk(request, request.computed, 1)
            for request in list(self.running)
            if self._grow(request)
        ]

    def _grow(self, request: Request) -> bool:
        """See that there is a slot for the next token. False if the request was preempted, by this or before."""
        if request.state != "decode":
            return False
        if request.computed < len(request.table) * self.pool.block_size:
            return True
        while self.pool.available == 0:
            victim = self.running[-1]
            self._preempt(victim)
            if victim is request:
                return False
        request.table += self.pool.allocate(1)
        return True

    def _preempt(self, request: Request) -> None:
        self.counters.preemptions += 1
        request.preemptions += 1
        self.running.remove(request)
        self._release(request)
        request.state = "preempted"
        insort(self.waiting, request, key=_order)

    def _release(self, request: Request) -> None:
        self.pool.release(request.table)
        request.table = []
        request.computed = request.committed = 0

    def _admit(self) -> list[Request]:
        """Move requests from waiting to running, strictly in order, while batch and pool have room."""
        started = []
        for request in list(self.waiting):
            if len(self.running) >= self._max_running:
                break
            if self._waits_for_leader(request):
                continue
            if not self._reserve_blocks(request):
                break
            if request.started_at is None:
                request.started_at = time.monotonic()
                started.append(request)
            request.state = "prefill"
            self.waiting.remove(request)
            insort(self.running, request, key=_order)
        return started

    def _waits_for_leader(self, request: Request) -> bool:
        leader = self._by_id.get(request.leader) if request.leader else None
        return leader is not None and leader.first_token_at is None

    def _reserve_blocks(self, request: Request) -> bool:
        """Blocks for all tokens of the request: known ones shared, the rest private. False if there are too few."""
        matched = self._match(request)
        wanted = self.pool.blocks_for(len(request.tokens)) - len(matched)
        revived = sum(map(self.pool.is_unreferenced, matched))
        left = self.pool.available - wanted - revived
        if left < (self._reserve if self.running else 0):
            return False
        self.pool.share(matched)
        request.table = [*matched, *self.pool.allocate(wanted)]
        request.committed = len(matched)
        request.computed = len(matched) * self.pool.block_size
        self._count_hits(request)
        return True

    def _match(self, request: Request) -> list[int]:
        if not (self.pool.prefix_caching or request.leader):
            return []
        # The last token is always computed: its output chooses the next one.
        full = (len(request.tokens) - 1) // self.pool.block_size
        self._hash(request, full)
        return self.pool.match(request.salt, request.tokens, request.digests[:full])

    def _count_hits(self, request: Request) -> None:
        if request.started_at is not None:
            return
        request.cached_tokens = request.computed
        if self.pool.prefix_caching:
            self.counters.query_tokens += request.prompt_length
            self.counters.hit_tokens += request.cached_tokens

    def _prefills(self, budget: int) -> list[Chunk]:
        chunks = []
        for request in self.running:
            if request.state == "prefill" and budget > 0:
                chunk = Chunk(request, request.computed, min(budget, request.uncomputed))
                budget -= chunk.length
                chunks.append(chunk)
        return chunks

    def _hash(self, request: Request, blocks: int) -> None:
        """Extend the request's chain of digests to its first `blocks` blocks."""
        for index in range(len(request.digests), blocks):
            parent = request.digests[-1] if request.digests else ROOT
            request.digests.append(block_digest(parent, self._content(request, index)))

    def _content(self, request: Request, index: int) -> bytes:
        size = self.pool.block_size
        return block_content(request.salt, request.tokens[index * size : (index + 1) * size])


def _order(request: Request) -> tuple[int, int]:
    return request.order

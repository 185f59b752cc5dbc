"""Who computes how many tokens in the next step: decodes, then prompts, the better class and the older first.

Invariants: a request runs only with blocks for all its tokens. A lower class never holds up a higher one by more
than the step that is under way. Some request can always go on, so every step makes progress; a request that could
not fit an empty pool, or its tenant's quota, never gets in here.
"""

from __future__ import annotations

import math
import time
from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from kvops.batching import most_running
from kvops.node.engine.block_pool import BlockPool
from kvops.node.engine.pace import Pace, share_out
from kvops.node.engine.prefixes import PrefixNames
from kvops.node.engine.queue import WaitingQueue
from kvops.node.engine.request import Request
from kvops.node.engine.room import Room, RoomFinder
from kvops.node.engine.tenants import Tenants


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


@dataclass(frozen=True, slots=True)
class Bounds:
    max_batch_size: int
    max_batched_tokens: int
    watermark: float = 0.01
    batch_max_load: int | None = None
    """Requests of the batch class start only while there are fewer better ones; None: half a batch."""

    @property
    def max_running(self) -> int:
        return most_running(self.max_batch_size, self.max_batched_tokens)

    @property
    def batch_load(self) -> int:
        if self.batch_max_load is not None:
            return self.batch_max_load
        return max(1, self.max_batch_size // 2)


class Scheduler:
    def __init__(
        self,
        pool: BlockPool,
        bounds: Bounds,
        *,
        tenants: Tenants | None = None,
        names: PrefixNames | None = None,
        pace: Pace | None = None,
    ) -> None:
        self.pool = pool
        self.bounds = bounds
        self.tenants = tenants or Tenants()
        self.pace = pace or Pace(None, bounds.max_batched_tokens)
        self.waiting = WaitingQueue(bounds.batch_load)
        self.running: list[Request] = []
        """Sorted by `Request.order`: the last is the first to be preempted."""
        self.counters = Counters()
        self._names = names or PrefixNames(pool.block_size)
        self._by_id: dict[str, Request] = {}
        reserve = math.ceil(pool.total * bounds.watermark)
        self._room = RoomFinder(pool, self.tenants, self.running, bounds.max_running, reserve)

    def __iter__(self) -> Iterator[Request]:
        yield from self.running
        yield from self.waiting

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._by_id

    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def add(self, request: Request) -> None:
        request.kv_quota = self.tenants.limits(request.tenant).kv_blocks
        self._by_id[request.request_id] = request
        self.waiting.add(request)

    def cancel(self, request_id: str) -> bool:
        """End the request now and free its blocks. False if there is no such request."""
        request = self._by_id.get(request_id)
        if request is not None:
            self.finish(request)
        return request is not None

    def finish(self, request: Request) -> None:
        if request in self.running:
            self.running.remove(request)
            self._release(request)
        else:
            self.waiting.remove(request)
        del self._by_id[request.request_id]

    def look_again(self) -> None:
        """For those that wait there may be room now, although no block was given back: their bounds changed."""
        for request in self.waiting:
            request.refused_for = None

    def disown(self, request: Request) -> None:
        """Keep others from reusing what the request computed: its numbers are not to be trusted."""
        self.pool.disown(request.table)

    def schedule(self) -> Batch:
        """The next step's work; empty only if there is none."""
        decoding, thrown_out = self._grow_all()
        started = self._admit(better_than=min(thrown_out, default=None))
        # A request of a better class may have taken the place of one that was about to decode.
        decodes = [Chunk(one, one.computed, 1) for one in decoding if one.state == "decode"]
        return Batch(tuple(decodes), tuple(self._prefills(decodes)), tuple(started))

    def computed(self, chunk: Chunk) -> None:
        """Record that a chunk's keys and values are in the pool, and make its full blocks findable."""
        request = chunk.request
        request.computed += chunk.length
        if request.computed == len(request.tokens):
            request.state = "decode"
        full = request.computed // self.pool.block_size
        self._names.extend(request, full)
        for index in range(request.committed, full):
            self._commit(request, index)
        request.committed = full

    def _commit(self, request: Request, index: int) -> None:
        """Where another computed the same block meanwhile, one of the two is enough. A chain of which one request
        held a part and another the rest could also lose its beginning first."""
        own = request.table[index]
        kept = self.pool.commit(own, request.keys[index])
        if kept != own:
            self.pool.share([kept])
            self.tenants.hold(request.tenant, [kept])
            request.table[index] = kept
            self.tenants.drop(request.tenant, [own])
            self.pool.release([own])

    def check(self) -> list[str]:
        """What is broken, in words."""
        faults = self.pool.check(request.table for request in self)
        return faults + self.tenants.check(self)

    # Requests that run.

    def _grow_all(self) -> tuple[list[Request], list[int]]:
        """Requests with a slot for their next token, and the ranks of those that were preempted for it."""
        before = list(self.running)
        # Growing one may preempt others, which are then neither running nor in "decode".
        decoding = [request for request in before if self._grow(request)]
        return decoding, [one.rank for one in before if one.state == "preempted"]

    def _grow(self, request: Request) -> bool:
        """See that there is a slot for the next token. False if the request was preempted, by this or before."""
        if request.state != "decode":
            return False
        if request.computed < len(request.table) * self.pool.block_size:
            return True
        while victim := self._in_the_way_of(request):
            self._preempt(victim)
            if victim is request:
                return False
        self._give(request, self.pool.allocate(1))
        return True

    def _in_the_way_of(self, request: Request) -> Request | None:
        """Who gives way so that a request can have one block more: the last of the tenant, or the last of all."""
        quota = self.tenants.quota_of(request)
        if quota is not None and len(self.tenants.references(request.tenant)) >= quota:
            return next(one for one in reversed(self.running) if one.tenant == request.tenant)
        return None if self.pool.available else self.running[-1]

    def _preempt(self, request: Request) -> None:
        self.counters.preemptions += 1
        request.preemptions += 1
        self.running.remove(request)
        self._release(request)
        request.state = "preempted"
        self.waiting.add(request)

    def _give(self, request: Request, blocks: Sequence[int]) -> None:
        request.table += blocks
        self.tenants.hold(request.tenant, blocks)

    def _release(self, request: Request) -> None:
        self.tenants.drop(request.tenant, request.table)
        self.pool.release(request.table)
        request.table = []
        request.computed = request.committed = 0

    # Requests that wait.

    def _admit(self, better_than: int | None) -> list[Request]:
        """Let in who has room. `better_than`: one that was preempted a moment ago would come back, and go again."""
        started = []
        for request in self.waiting.candidates(self.running):
            if better_than is not None and request.rank >= better_than:
                break
            if self._leader_is_ahead(request):
                continue
            room = self._look_for_room(request)
            if room.obstacle:
                self.waiting.no_room(request)
                continue
            if request.started_at is None:
                started.append(request)
            self._let_in(request, room)
        return started

    def _leader_is_ahead(self, request: Request) -> bool:
        leader = self._by_id.get(request.leader) if request.leader else None
        return leader is not None and leader.first_token_at is None

    def _look_for_room(self, request: Request) -> Room:
        if request.refused_for and request.refused_at == self.pool.releases:
            return Room(obstacle=request.refused_for)
        room = self._room.find(request, self._match(request))
        request.refused_at, request.refused_for = self.pool.releases, room.obstacle
        return room

    def _let_in(self, request: Request, room: Room) -> None:
        # Before anyone leaves: without the cache, a block that only they hold would be forgotten.
        self.pool.share(room.matched)
        self._give(request, room.matched)
        for victim in room.leaving:
            self._preempt(victim)
        private = self.pool.blocks_for(len(request.tokens)) - len(room.matched)
        self._give(request, self.pool.allocate(private))
        request.committed = len(room.matched)
        request.computed = len(room.matched) * self.pool.block_size
        request.state = "prefill"
        if request.started_at is None:
            request.started_at = time.monotonic()
            self._count_hits(request)
        self.waiting.let_in(request)
        insort(self.running, request, key=lambda one: one.order)

    def _match(self, request: Request) -> list[int]:
        if not (self.pool.prefix_caching or request.leader):
            return []
        # The last token is always computed: its output chooses the next one.
        full = (len(request.tokens) - 1) // self.pool.block_size
        self._names.extend(request, full)
        return self.pool.match(request.keys[:full])

    def _count_hits(self, request: Request) -> None:
        request.cached_tokens = request.computed
        if self.pool.prefix_caching:
            self.counters.query_tokens += request.prompt_length
            self.counters.hit_tokens += request.cached_tokens

    # Prompts.

    def _prefills(self, decodes: Sequence[Chunk]) -> list[Chunk]:
        """The better class first. Who waits for a next token is held up by its own class, or a lower one, no
        longer than the pace allows."""
        left = self.bounds.max_batched_tokens - len(decodes)
        paced = min(left, self.pace.limit(len(decodes)))
        chunks: list[Chunk] = []
        prefilling = [request for request in self.running if request.state == "prefill"]
        for rank, requests in groupby(prefilling, key=lambda one: one.rank):
            held_up = bool(decodes) and decodes[0].request.rank <= rank
            lengths = share_out(list(requests), paced if held_up else left)
            used = sum(lengths.values())
            left, paced = left - used, max(0, paced - used)
            chunks += [Chunk(one, one.computed, length) for one, length in lengths.items()]
        return chunks

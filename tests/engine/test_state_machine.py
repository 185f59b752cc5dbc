"""The scheduler and its pool under any order of arrivals, cancels, steps, flushes, faults and quotas.

The model is arithmetic (`arithmetic.py`), so that every output is compared with that of a solo run; all else is the
real thing. What must hold of a step is in `rules.py`, what must hold of the cache is here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kvops.node.engine.block_pool import BlockPool
from kvops.node.engine.pace import Pace
from kvops.node.engine.prefixes import PrefixNames
from kvops.node.engine.request import Request
from kvops.node.engine.scheduler import Bounds, Chunk, Scheduler
from kvops.node.engine.tenants import Limits, Tenants
from tests.engine.arithmetic import Memory, next_token, solo, states
from tests.engine.driving import submit
from tests.engine.rules import Watch

SIZE = 4
BLOCKS = 8
CLASSES = ("online", "normal", "batch")
SALTS = {"a": b"salt-a", "b": b"salt-b"}
SHARED = [0] * 8 + [1]
BEGINNINGS: list[list[int]] = [[], SHARED, SHARED[:5], [1, 0, 1, 1] * 3]

Name = tuple[str, tuple[int, ...]]
"""Of a block: whose it is, and all tokens up to its end."""


@dataclass(frozen=True)
class Arrival:
    prompt: list[int]
    max_tokens: int
    priority: str
    tenant: str
    leader: int | None
    """For n > 1: a sibling is like its leader in all else."""
    sick_at: int | None
    """Generated tokens after which its numbers are none."""


PROMPTS = st.builds(
    lambda begin, rest: begin + rest,
    st.sampled_from(BEGINNINGS),
    st.lists(st.integers(0, 1), min_size=1, max_size=8)
    | st.lists(st.integers(0, 1), min_size=12, max_size=18),
)
ARRIVALS = st.builds(
    Arrival,
    PROMPTS,
    st.integers(1, 11),
    st.sampled_from(CLASSES),
    st.sampled_from(sorted(SALTS)),
    st.none() | st.integers(0, 6),
    st.sampled_from([None] * 8 + [0, 0, 3]),
)
LIMITS = st.just(Limits()) | st.builds(
    Limits, st.none() | st.integers(1, 3), st.none() | st.integers(3, 8)
)


def name_of(tenant: str, tokens: list[int]) -> Name:
    """Between tenants only what lies within the operator's prefix is common."""
    shared = SHARED[: len(SHARED) // SIZE * SIZE]
    common = len(tokens) <= len(shared) and tokens == shared[: len(tokens)]
    return ("" if common else tenant), tuple(tokens)


class WatchedScheduler(Scheduler):
    """Compares each look into the cache with what was ever computed and has not been given away since."""

    named: dict[int, Name]

    def _match(self, request: Request) -> list[int]:
        found = super()._match(request)
        names = [self.named[block] for block in found]
        assert names == self._expected(request), "the cache finds what it holds, and that only"
        return found

    def _expected(self, request: Request) -> list[Name]:
        if not (self.pool.prefix_caching or request.leader):
            return []
        held = {
            self.named[index] for index, block in enumerate(self.pool.blocks) if block.digest is not None
        }  # fmt: skip
        run: list[Name] = []
        while (end := (len(run) + 1) * SIZE) < len(request.tokens):
            name = name_of(request.tenant, request.tokens[:end])
            if name not in held:
                break
            run.append(name)
        return run


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        caching=st.sampled_from([True, True, False]),
        batch_size=st.integers(1, 5),
        budget=st.integers(1, 12),
        watermark=st.sampled_from([0.0, 0.25]),
        batch_load=st.sampled_from([None, 1, 3]),
        pace=st.sampled_from([None, 1, 3]),
        limits=st.fixed_dictionaries(dict.fromkeys(SALTS, LIMITS)),
    )
    def create(
        self, caching: bool, batch_size: int, budget: int, watermark: float, batch_load: int | None,
        pace: int | None, limits: dict[str, Limits],
    ) -> None:  # fmt: skip
        self.bounds = Bounds(batch_size, budget, watermark, batch_load)
        self.limits = limits
        self.scheduler = WatchedScheduler(
            BlockPool(BLOCKS, SIZE, prefix_caching=caching),
            self.bounds,
            tenants=Tenants(limits),
            names=PrefixNames(SIZE, [SHARED]),
            pace=Pace(pace, budget),
        )
        self.scheduler.named = self.named = {}
        self.memory = Memory(SIZE)
        self.watch = Watch(self.scheduler, self.bounds, limits, pace)
        self.added: dict[int, Arrival] = {}
        self.queried = self.hit = self.preempted = 0
        self.anyone_sick = False

    @rule(arrivals=st.lists(ARRIVALS, min_size=1, max_size=5))
    def add(self, arrivals: list[Arrival]) -> None:
        for arrival in arrivals:
            leader = self.added.get(arrival.leader)
            if leader is not None:
                arrival = replace(leader, leader=arrival.leader, sick_at=arrival.sick_at)
            request_id = len(self.added)
            self.added[request_id] = arrival
            if self._can_ever_fit(arrival):
                message = submit(
                    str(request_id), arrival.prompt, max_tokens=arrival.max_tokens, tenant=arrival.tenant,
                    salt=SALTS[arrival.tenant], priority=arrival.priority,
                    leader=None if leader is None else str(arrival.leader),
                )  # fmt: skip
                self.scheduler.add(Request.from_submit(message, request_id))

    def _can_ever_fit(self, arrival: Arrival) -> bool:
        """What admission asks."""
        blocks = -(-(len(arrival.prompt) + arrival.max_tokens) // SIZE)
        return blocks <= (self.limits[arrival.tenant].kv_blocks or BLOCKS)

    @rule(which=st.integers(0, 30))
    def cancel(self, which: int) -> None:
        present = str(which) in self.scheduler
        assert self.scheduler.cancel(str(which)) == present
        assert str(which) not in self.scheduler

    @rule()
    def flush(self) -> None:
        self.scheduler.pool.flush()
        assert self.scheduler.pool.cached == 0

    @precondition(lambda self: self.scheduler.has_work())
    @rule(count=st.integers(1, 8))
    def step(self, count: int) -> None:
        for _ in range(count):
            if self.scheduler.has_work():
                self._step()

    def _step(self) -> None:
        cached, pool = list(self.scheduler.pool._cached), self.scheduler.pool
        self.watch.before()
        evictions, running = pool.evictions, list(self.scheduler.running)
        batch = self.scheduler.schedule()
        self.watch.after(batch)
        gone = sum(one not in self.scheduler.running for one in running)
        self.preempted += gone
        self._check_evictions(cached, pool.evictions - evictions)
        assert pool.evictions == evictions or gone or not pool.free, "blank ones go first"
        for request in batch.started:
            self._check_start(request)
        for chunk in batch.chunks:
            self._advance(chunk)
        self.sound()
        self.quotas_hold()
        self.blocks_are_shared_only_where_all_is_equal()
        self.without_the_cache_only_siblings_share()
        self.equal_blocks_are_held_once()
        self.chains_are_whole()
        self.counters_are_true()

    def _check_evictions(self, cached: list[int], evictions: int) -> None:
        """Of what was cached and is neither held nor cached any more, nothing outlived something older."""
        pool = self.scheduler.pool
        blank = {index for index, block in enumerate(pool.blocks) if block.digest is None}
        if evictions == 0:
            assert not blank.intersection(cached), "nothing is forgotten without need"
        kept = [index for index in cached if index in pool._cached]
        order = list(pool._cached)
        assert order[: len(kept)] == kept, "the order of use is kept, and who comes is the latest"
        if kept:
            younger = cached[cached.index(kept[0]) :]
            assert not blank.intersection(younger), "the oldest goes first"

    def _check_start(self, request: Request) -> None:
        if self.scheduler.pool.prefix_caching:
            self.queried += request.prompt_length
            self.hit += request.computed
        assert request.cached_tokens == request.computed < request.prompt_length

    def _advance(self, chunk: Chunk) -> None:
        request, samples = chunk.request, chunk.samples
        arrival = self.added[int(request.request_id)]
        sick = samples and request.generated == arrival.sick_at
        self.memory.compute(chunk, sick=sick)
        self.scheduler.computed(chunk)
        self._name(request)
        if not samples:
            return
        request.first_token_at = 0.0
        token = None if sick else next_token(states(request.tokens)[-1])
        if token is not None:
            request.tokens.append(token)
        if sick:
            self.anyone_sick = True
            self.scheduler.disown(request)
        if token is None or request.generated == request.params.max_tokens:
            self.scheduler.finish(request)
            assert not self.memory.poisoned(self._findable())
            expected = solo(arrival.prompt, arrival.max_tokens)
            assert request.output == (expected[: request.generated] if sick else expected)

    def _findable(self) -> set[int]:
        blocks = enumerate(self.scheduler.pool.blocks)
        return {index for index, block in blocks if block.digest is not None}

    def _name(self, request: Request) -> None:
        for index in range(request.computed // SIZE):
            tokens = request.tokens[: (index + 1) * SIZE]
            self.named[request.table[index]] = name_of(request.tenant, tokens)

    @invariant()
    def sound(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        scheduler, pool = self.scheduler, self.scheduler.pool
        assert scheduler.check() == []
        assert pool.used + pool.cached + pool.free == pool.total
        assert pool.prefix_caching or pool.cached == 0
        holders = Counter(block for request in scheduler.running for block in request.table)
        assert all(block.references == holders[at] for at, block in enumerate(pool.blocks))
        assert all(request.table == [] for request in scheduler.waiting)
        assert all(request.computed == request.committed == 0 for request in scheduler.waiting)
        for queue in (list(scheduler.waiting), scheduler.running):
            assert queue == sorted(queue, key=lambda request: request.order)

    @invariant()
    def quotas_hold(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        running = Counter(request.tenant for request in self.scheduler.running)
        held: dict[str, set[int]] = {tenant: set() for tenant in SALTS}
        for request in self.scheduler.running:
            held[request.tenant].update(request.table)
        for tenant, limits in self.limits.items():
            assert limits.max_running is None or running[tenant] <= limits.max_running
            assert limits.kv_blocks is None or len(held[tenant]) <= limits.kv_blocks
        told = self.scheduler.tenants.held()
        assert told == {tenant: len(blocks) for tenant, blocks in held.items() if blocks}

    def blocks_are_shared_only_where_all_is_equal(self) -> None:
        """Between tenants only within the operator's prefix; else only with the same tokens from the start."""
        holders: dict[int, Name] = {}
        for request in self.scheduler.running:
            for index, block in enumerate(request.table):
                begin = request.tokens[: (index + 1) * SIZE]
                name = name_of(request.tenant, begin)
                assert holders.setdefault(block, name) == name

    def without_the_cache_only_siblings_share(self) -> None:
        if self.scheduler.pool.prefix_caching:
            return
        holders: dict[int, list[Request]] = {}
        for request in self.scheduler.running:
            for block in request.table:
                holders.setdefault(block, []).append(request)
        for requests in holders.values():
            assert sum(request.leader is None for request in requests) <= 1

    def equal_blocks_are_held_once(self) -> None:
        if not self.scheduler.pool.prefix_caching:
            return
        for request in self.scheduler.running:
            for index in range(request.computed // SIZE):
                name = name_of(request.tenant, request.tokens[: (index + 1) * SIZE])
                holders = {
                    block for block, known in self.named.items()
                    if known == name and self.scheduler.pool.blocks[block].digest is not None
                }  # fmt: skip
                assert holders == {request.table[index]}

    def chains_are_whole(self) -> None:
        """What is cached can be found: what comes before it is there, and goes after it."""
        if self.anyone_sick:
            return
        pool = self.scheduler.pool
        order = {index: at for at, index in enumerate(pool._cached)}
        found = {
            self.named[index]: order.get(index, BLOCKS)
            for index, block in enumerate(pool.blocks) if block.digest is not None
        }  # fmt: skip
        for index, at in order.items():
            tenant, tokens = self.named[index]
            before = list(tokens[:-SIZE])
            assert not before or found.get(name_of(tenant, before), -1) > at

    def counters_are_true(self) -> None:
        counters = self.scheduler.counters
        assert (counters.query_tokens, counters.hit_tokens) == (self.queried, self.hit)
        assert counters.preemptions == self.preempted

    def teardown(self) -> None:
        """All that is left comes to an end, in a bounded number of steps, and every block comes back."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(200 * (len(self.added) + 1)):
            if not self.scheduler.has_work():
                break
            self._step()
        assert not self.scheduler.has_work()
        assert self.scheduler.pool.used == 0
        assert self.scheduler.tenants.held() == {}
        assert self.scheduler.check() == []


def test_any_order() -> None:
    run_state_machine_as_test(
        SchedulerMachine, settings=settings(max_examples=150, stateful_step_count=30, deadline=None)
    )


@pytest.mark.long
def test_any_order_for_long() -> None:
    # In rounds: hypothesis remembers every step of one, which takes gigabytes.
    for _ in range(10):
        run_state_machine_as_test(
            SchedulerMachine,
            settings=settings(max_examples=300, stateful_step_count=80, deadline=None),
        )

"""The scheduler and its pool under any order of arrivals, cancels, steps, flushes and quotas, without a model.

What a model would compute plays no part in who runs: a token is made up, everything else is the real thing.
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
from kvops.node.engine.scheduler import Batch, Bounds, Chunk, Scheduler
from kvops.node.engine.tenants import Limits, Tenants
from tests.engine.driving import submit

SIZE = 4
BLOCKS = 8
CLASSES = ("online", "normal", "batch")
SALTS = {"a": b"salt-a", "b": b"salt-b"}
SHARED = [0] * 8 + [1]
BEGINNINGS: list[list[int]] = [[], SHARED, SHARED[:5], [1, 0, 1, 1] * 3]


@dataclass(frozen=True)
class Arrival:
    prompt: list[int]
    max_tokens: int
    priority: str
    tenant: str
    leader: int | None
    """For n > 1: a sibling is like its leader in all else."""


PROMPTS = st.builds(
    lambda begin, rest: begin + rest,
    st.sampled_from(BEGINNINGS),
    st.lists(st.integers(0, 1), min_size=1, max_size=8),
)
ARRIVALS = st.builds(
    Arrival,
    PROMPTS,
    st.integers(1, 11),
    st.sampled_from(CLASSES),
    st.sampled_from(sorted(SALTS)),
    st.none() | st.integers(0, 6),
)


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        caching=st.booleans(),
        batch_size=st.integers(1, 5),
        budget=st.integers(1, 12),
        watermark=st.sampled_from([0.0, 0.2]),
        pace=st.sampled_from([None, 1, 3]),
        limits=st.fixed_dictionaries(
            {
                tenant: st.builds(
                    Limits, st.none() | st.integers(1, 3), st.none() | st.integers(3, 8)
                )
                for tenant in SALTS
            }
        ),
    )
    def create(
        self, caching: bool, batch_size: int, budget: int, watermark: float, pace: int | None,
        limits: dict[str, Limits],
    ) -> None:  # fmt: skip
        self.bounds = Bounds(batch_size, budget, watermark)
        self.limits = limits
        self.scheduler = Scheduler(
            BlockPool(BLOCKS, SIZE, prefix_caching=caching),
            self.bounds,
            tenants=Tenants(limits),
            names=PrefixNames(SIZE, [SHARED]),
            pace=Pace(pace, budget),
        )
        self.added: dict[int, Arrival] = {}

    @rule(arrivals=st.lists(ARRIVALS, min_size=1, max_size=5))
    def add(self, arrivals: list[Arrival]) -> None:
        for arrival in arrivals:
            leader = self.added.get(arrival.leader)
            if leader is not None:
                arrival = replace(leader, leader=arrival.leader)
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
        quota = self.limits[arrival.tenant].kv_blocks
        return quota is None or -(-(len(arrival.prompt) + arrival.max_tokens) // SIZE) <= quota

    @rule(which=st.integers(0, 30))
    def cancel(self, which: int) -> None:
        present = str(which) in self.scheduler
        assert self.scheduler.cancel(str(which)) == present

    @rule()
    def evict(self) -> None:
        self.scheduler.pool.flush()
        assert self.scheduler.pool.cached == 0

    @precondition(lambda self: self.scheduler.has_work())
    @rule(count=st.integers(1, 8))
    def step(self, count: int) -> None:
        for _ in range(count):
            if self.scheduler.has_work():
                self._step()
                self.sound()
                self.quotas_hold()
                self.blocks_are_shared_only_where_all_is_equal()

    def _step(self) -> None:
        before = list(self.scheduler.running)
        batch = self.scheduler.schedule()
        self._check_batch(batch)
        self._check_precedence(before)
        for chunk in batch.chunks:
            self._advance(chunk)

    def _check_batch(self, batch: Batch) -> None:
        assert batch.chunks, "there is work, so there is progress"
        assert sum(chunk.length for chunk in batch.chunks) <= self.bounds.max_batched_tokens
        requests = {chunk.request for chunk in batch.chunks}
        assert len(requests) == len(batch.chunks)
        assert len(self.scheduler.running) <= self.bounds.max_running
        for chunk in batch.chunks:
            assert chunk.request in self.scheduler.running
            assert len(chunk.request.table) * SIZE >= chunk.start + chunk.length

    def _check_precedence(self, before: list[Request]) -> None:
        """The oldest of the best class is put back only for a better class; nobody worse runs in its stead."""
        if not before or before[0] in self.scheduler.running:
            return
        assert self.scheduler.running[0].rank < before[0].rank

    def _advance(self, chunk: Chunk) -> None:
        request, samples = chunk.request, chunk.samples
        self.scheduler.computed(chunk)
        if not samples:
            return
        request.first_token_at = 0.0
        request.tokens.append(request.generated % 2)
        if request.generated == request.params.max_tokens:
            self.scheduler.finish(request)

    @invariant()
    def sound(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        scheduler, pool = self.scheduler, self.scheduler.pool
        assert scheduler.check() == []
        assert pool.used + pool.cached + pool.free == pool.total
        assert all(request.table == [] for request in scheduler.waiting)
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

    @invariant()
    def blocks_are_shared_only_where_all_is_equal(self) -> None:
        """Between tenants only within the operator's prefix; else only with the same tokens from the start."""
        if not hasattr(self, "scheduler"):
            return
        holders: dict[int, tuple[str, list[int]]] = {}
        for request in self.scheduler.running:
            for index, block in enumerate(request.table):
                begin = request.tokens[: (index + 1) * SIZE]
                tenant, tokens = holders.setdefault(block, (request.tenant, begin))
                assert tokens == begin
                if tenant != request.tenant:
                    assert begin == SHARED[: len(begin)]

    def teardown(self) -> None:
        """All that is left comes to an end, in a bounded number of steps, and every block comes back."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(200 * (len(self.added) + 1)):
            if not self.scheduler.has_work():
                break
            self._step()
            self.sound()
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
    run_state_machine_as_test(
        SchedulerMachine,
        settings=settings(max_examples=3000, stateful_step_count=80, deadline=None),
    )

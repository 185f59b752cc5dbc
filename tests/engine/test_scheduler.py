"""The scheduler under any order of arrivals, cancels and steps, with a runner that needs no model."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvops.node.engine.block_pool import BlockPool
from kvops.node.engine.request import Request
from kvops.node.engine.scheduler import Scheduler
from tests.engine.driving import submit

SIZE = 4
BLOCKS = 8
CLASSES = ("online", "normal", "batch")


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        caching=st.booleans(),
        batch_size=st.integers(1, 5),
        budget=st.integers(1, 12),
        watermark=st.sampled_from([0.0, 0.2]),
    )
    def create(self, caching: bool, batch_size: int, budget: int, watermark: float) -> None:
        pool = BlockPool(BLOCKS, SIZE, prefix_caching=caching)
        self.scheduler = Scheduler(pool, batch_size, budget, watermark)
        self.arrivals = 0
        self.budget, self.batch_size = budget, batch_size

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=20),
        max_tokens=st.integers(1, 12),
        priority=st.sampled_from(CLASSES),
        leader=st.one_of(st.none(), st.integers(0, 6)),
    )
    def add(self, prompt: list[int], max_tokens: int, priority: str, leader: int | None) -> None:
        request_id = str(self.arrivals)
        sibling = None if leader is None or leader >= self.arrivals else str(leader)
        message = submit(
            request_id, prompt, max_tokens=max_tokens, priority=priority, leader=sibling
        )
        if sibling is not None:
            message = submit(request_id, prompt, max_tokens=max_tokens, leader=sibling)
        self.scheduler.add(Request.from_submit(message, self.arrivals))
        self.arrivals += 1

    @rule(which=st.integers(0, 30))
    def cancel(self, which: int) -> None:
        present = str(which) in self.scheduler
        assert self.scheduler.cancel(str(which)) == present

    @precondition(lambda self: self.scheduler.has_work())
    @rule()
    def step(self) -> None:
        self._step()

    def _step(self) -> None:
        oldest = self.scheduler.running[:1]
        batch = self.scheduler.schedule()
        assert batch.chunks, "there is work, so there is progress"
        assert sum(chunk.length for chunk in batch.chunks) <= self.budget
        assert (
            len({chunk.request for chunk in batch.chunks}) == len(batch.chunks) <= self.batch_size
        )
        assert all(request in self.scheduler.running for request in oldest), (
            "the oldest is never preempted"
        )
        for chunk in batch.chunks:
            assert len(chunk.request.table) * SIZE >= chunk.start + chunk.length
            self._advance(chunk.request, chunk.samples, chunk)

    def _advance(self, request: Request, samples: bool, chunk: object) -> None:
        self.scheduler.computed(chunk)  # type: ignore[arg-type]
        if samples:
            request.first_token_at = 0.0
            request.tokens.append(request.generated % 2)
            if request.generated == request.params.max_tokens:
                self.scheduler.finish(request)

    @invariant()
    def sound(self) -> None:
        if hasattr(self, "scheduler"):
            assert self.scheduler.check() == []
            assert all(request.table == [] for request in self.scheduler.waiting)
            for queue in (self.scheduler.waiting, self.scheduler.running):
                assert queue == sorted(queue, key=lambda request: request.order)

    def teardown(self) -> None:
        """All that is left comes to an end, in a bounded number of steps, and every block comes back."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(100 * (self.arrivals + 1)):
            if not self.scheduler.has_work():
                break
            self._step()
        assert not self.scheduler.has_work()
        assert self.scheduler.pool.used == 0
        assert self.scheduler.check() == []


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def test_decodes_come_before_prefills() -> None:
    scheduler = Scheduler(BlockPool(64, SIZE), max_batch_size=8, max_batched_tokens=10)
    requests = [Request.from_submit(submit(str(i), [i] * 9, max_tokens=9), i) for i in range(2)]
    scheduler.add(requests[0])
    scheduler.computed(scheduler.schedule().prefills[0])
    requests[0].tokens.append(0)
    scheduler.add(requests[1])
    batch = scheduler.schedule()
    assert [(chunk.request, chunk.length) for chunk in batch.chunks] == [
        (requests[0], 1),
        (requests[1], 9),
    ]


def test_admission_reserves_the_whole_prompt_and_the_watermark() -> None:
    scheduler = Scheduler(
        BlockPool(10, SIZE), max_batch_size=8, max_batched_tokens=4, watermark=0.2
    )
    for index, length in enumerate((16, 16, 1)):
        scheduler.add(Request.from_submit(submit(str(index), [index] * length), index))
    scheduler.schedule()
    assert [len(request.table) for request in scheduler.running] == [4, 4]
    assert len(scheduler.waiting) == 1, "one block more would touch the watermark"

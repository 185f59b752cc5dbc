"""What must hold of any step of the scheduler, told from the requests alone: who gave way, who waits, who was read."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kvops.node.engine.queue import MAX_OVERTAKEN
from kvops.node.engine.request import BATCH_RANK, Request
from kvops.node.engine.scheduler import Batch, Bounds, Scheduler
from kvops.node.engine.tenants import Limits


@dataclass
class Watch:
    """Looks at a scheduler before and after each step."""

    scheduler: Scheduler
    bounds: Bounds
    limits: Mapping[str, Limits]
    pace: int | None
    overtaken: Counter[str] = field(default_factory=Counter)
    _running: list[Request] = field(default_factory=list)
    _waiting: list[Request] = field(default_factory=list)
    _grows: bool = False
    """Somebody needs one block more in the step."""

    def before(self) -> None:
        self._running, self._waiting = list(self.scheduler.running), list(self.scheduler.waiting)
        size = self.scheduler.pool.block_size
        self._grows = any(one.computed == len(one.table) * size for one in self._running)

    def after(self, batch: Batch) -> None:
        now = self.scheduler.running
        gone = [one for one in self._running if one not in now]
        come = [one for one in now if one not in self._running]
        self._sizes(batch)
        self._siblings_wait_for_their_leader(come)
        self._who_gave_way(gone, come)
        self._nobody_leaves_for_another_tenants_bounds(gone, come)
        self._the_watermark_holds(come)
        self._batch_class_waits_for_load(come)
        self._nobody_is_overtaken_for_ever(come)
        self._nobody_worse_holds_up_the_first(gone)
        self._the_pace_holds(batch)

    def _sizes(self, batch: Batch) -> None:
        size = self.scheduler.pool.block_size
        assert batch.chunks, "there is work, so there is progress"
        assert sum(chunk.length for chunk in batch.chunks) <= self.bounds.max_batched_tokens
        assert len(self.scheduler.running) <= self.bounds.max_running
        assert len({chunk.request for chunk in batch.chunks}) == len(batch.chunks)
        for chunk in batch.chunks:
            assert chunk.request in self.scheduler.running
            assert chunk.start == chunk.request.computed
            assert 0 < chunk.length <= chunk.request.uncomputed
        assert {chunk.request for chunk in batch.decodes} == {
            one for one in self.scheduler.running if one.state == "decode"
        }, "everyone who waits for a next token gets one"
        for one in self.scheduler.running:
            assert len(one.table) == -(-len(one.tokens) // size), "just the blocks for its tokens"

    def _siblings_wait_for_their_leader(self, come: Iterable[Request]) -> None:
        unread = {one.request_id for one in self.scheduler if one.first_token_at is None}
        assert not any(one.leader in unread for one in come)

    def _who_gave_way(self, gone: Iterable[Request], come: Sequence[Request]) -> None:
        """The last of all, or of a tenant at its quota; or one that is worse than who came."""
        best = min((one.rank for one in come), default=BATCH_RANK + 1)
        for victim in gone:
            assert victim.state == "preempted"
            if best < victim.rank:
                continue
            alike = [one for one in self._running if one in self.scheduler.running]
            if self.limits[victim.tenant].kv_blocks is not None:
                alike = [one for one in alike if one.tenant == victim.tenant]
            assert all(one.order < victim.order for one in alike), "the last goes first"
        if self._running and self._running[0] not in self.scheduler.running:
            assert best < self._running[0].rank, "the first of the best class stays"

    def _batch_class_waits_for_load(self, come: Iterable[Request]) -> None:
        load = sum(one.rank < BATCH_RANK for one in (*self._running, *self._waiting))
        if load >= self.bounds.batch_load:
            assert all(one.rank < BATCH_RANK for one in come)

    def _nobody_is_overtaken_for_ever(self, come: Iterable[Request]) -> None:
        for late in come:
            for early in self.scheduler.waiting:
                alike = early.rank == late.rank and early.leader is None
                free = not any(self._bounded(one) for one in (early, late))
                if alike and free and early.order < late.order and early in self._waiting:
                    self.overtaken[early.request_id] += 1
                    assert self.overtaken[early.request_id] <= MAX_OVERTAKEN

    def _bounded(self, request: Request) -> bool:
        return self.limits[request.tenant] != Limits()

    def _nobody_worse_holds_up_the_first(self, gone: Sequence[Request]) -> None:
        """Who is first in the queue would not fit either if all that are worse than it had left. Where that is for
        its tenant's bounds, neither would the first of the next tenant."""
        tenants: set[str] = set()
        for first in self.scheduler.waiting:
            if first.tenant in tenants:
                continue
            if self._has_to_wait(first, gone):
                return
            rest = [one for one in self.scheduler.running if one.rank <= first.rank]
            assert not self._fits(first, rest), f"{first.request_id} waits for somebody worse"
            if first.refused_for != "tenant":
                return
            tenants.add(first.tenant)

    def _has_to_wait(self, first: Request, gone: Sequence[Request]) -> bool:
        """For its sibling's prompt, for the load to fall, or since it or one alike was put back just now."""
        leader = next((one for one in self.scheduler if one.request_id == first.leader), None)
        load = sum(one.rank < BATCH_RANK for one in (*self._running, *self._waiting))
        return (
            (leader is not None and leader.first_token_at is None)
            or (first.rank == BATCH_RANK and load >= self.bounds.batch_load)
            or any(one.rank <= first.rank for one in gone)
        )

    def _fits(self, first: Request, rest: Sequence[Request]) -> bool:
        pool, limits = self.scheduler.pool, self.limits[first.tenant]
        need = -(-len(first.tokens) // pool.block_size)
        own = [one for one in rest if one.tenant == first.tenant]
        reserve = self._reserve if rest else 0
        return (
            len(rest) < self.bounds.max_running
            and (limits.max_running is None or len(own) < limits.max_running)
            and (limits.kv_blocks is None or len(_held(own)) + need <= limits.kv_blocks)
            and pool.total - len(_held(rest)) - need >= reserve
        )

    @property
    def _reserve(self) -> int:
        return math.ceil(self.scheduler.pool.total * self.bounds.watermark)

    def _the_watermark_holds(self, come: Sequence[Request]) -> None:
        if come and len(self.scheduler.running) > 1:
            assert self.scheduler.pool.available >= self._reserve

    def _nobody_leaves_for_another_tenants_bounds(
        self, gone: Sequence[Request], come: Sequence[Request]
    ) -> None:
        """One that made room for one of another tenant could not have stayed beside it."""
        if self._grows or len(gone) != 1 or len(come) != 1 or gone[0].tenant == come[0].tenant:
            return
        pool, left = self.scheduler.pool, gone[0]
        need = -(-len(left.tokens) // pool.block_size)
        full = len(self.scheduler.running) >= self.bounds.max_running
        assert full or pool.available - need < self._reserve, f"{left.request_id} left for nothing"

    def _the_pace_holds(self, batch: Batch) -> None:
        """Prompts that are no better than somebody who waits for a next token share the pace."""
        if self.pace is None or not batch.decodes:
            return
        best = min(chunk.request.rank for chunk in batch.decodes)
        held_up = sum(c.length for c in batch.prefills if c.request.rank >= best)
        assert held_up <= self.pace


def _held(requests: Iterable[Request]) -> set[int]:
    return {block for one in requests for block in one.table}

"""Is there room for a waiting request, and who would have to leave for it? Decides nothing, changes nothing.

Only requests of a lower class ever leave for another, the lowest class and the youngest first, and only if that
does make the room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvops.node.engine.block_pool import BlockPool
from kvops.node.engine.request import Obstacle, Request
from kvops.node.engine.tenants import Tenants


@dataclass(frozen=True, slots=True)
class Room:
    """There is room once `leaving` have left, unless there is an `obstacle`."""

    matched: Sequence[int] = ()
    """Blocks of the prefix cache that the request begins with."""
    leaving: tuple[Request, ...] = ()
    obstacle: Obstacle | None = None


@dataclass(frozen=True, slots=True)
class RoomFinder:
    pool: BlockPool
    tenants: Tenants
    running: Sequence[Request]
    """Sorted by `Request.order`; the scheduler's own list."""
    max_running: int
    reserve: int
    """Blocks that stay free for running requests to grow into."""

    def find(self, request: Request, matched: Sequence[int]) -> Room:
        leaving: list[Request] = []
        while obstacle := self._obstacle(request, matched, leaving):
            victim = self._next_victim(request, leaving, obstacle)
            if victim is None:
                return Room(obstacle=obstacle)
            leaving.append(victim)
        return Room(matched, tuple(leaving))

    def _obstacle(
        self, request: Request, matched: Sequence[int], leaving: Sequence[Request]
    ) -> Obstacle | None:
        if not self._tenant_has_room(request, matched, leaving):
            return "tenant"
        if len(self.running) - len(leaving) >= self.max_running:
            return "node"
        return None if self._pool_has_room(request, matched, leaving) else "node"

    def _next_victim(
        self, request: Request, leaving: Sequence[Request], obstacle: Obstacle
    ) -> Request | None:
        for victim in reversed(self.running):
            if victim.rank <= request.rank:
                return None
            alike = obstacle == "node" or victim.tenant == request.tenant
            if alike and victim not in leaving:
                return victim
        return None

    def _tenant_has_room(
        self, request: Request, matched: Sequence[int], leaving: Sequence[Request]
    ) -> bool:
        limits, quota = self.tenants.limits(request.tenant), self.tenants.quota_of(request)
        own = [one for one in leaving if one.tenant == request.tenant]
        if limits.max_running is not None:
            running = sum(one.tenant == request.tenant for one in self.running)
            if running - len(own) >= limits.max_running:
                return False
        if quota is None:
            return True
        held = self.tenants.references(request.tenant)
        gone = _given_up(own, held)
        new = [block for block in matched if block not in held or block in gone]
        after = len(held) - len(gone) + len(new) + self._private(request, matched)
        return after <= quota

    def _pool_has_room(
        self, request: Request, matched: Sequence[int], leaving: Sequence[Request]
    ) -> bool:
        references = {b: self.pool.blocks[b].references for one in leaving for b in one.table}
        freed = _given_up(leaving, references)
        revived = sum(self.pool.is_unreferenced(block) or block in freed for block in matched)
        left = self.pool.available + len(freed) - revived - self._private(request, matched)
        return left >= (self.reserve if len(self.running) > len(leaving) else 0)

    def _private(self, request: Request, matched: Sequence[int]) -> int:
        return self.pool.blocks_for(len(request.tokens)) - len(matched)


def _given_up(leaving: Sequence[Request], references: Mapping[int, int]) -> set[int]:
    """Blocks that nobody of `references` holds once `leaving` have left."""
    given = Counter(block for one in leaving for block in one.table)
    return {block for block, count in given.items() if count == references.get(block)}

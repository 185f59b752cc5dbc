"""The requests that wait: by class, then by arrival. Says whose turn it is to look for room, and how often one that
finds none may be overtaken.

Invariant: of two requests of one class the older is let in first, unless there is no room for it. It is then
overtaken by at most `MAX_OVERTAKEN` younger ones before everyone behind it waits for it.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence
from itertools import chain

from kvops.node.engine.request import BATCH_RANK, Request

MAX_OVERTAKEN = 8
_LOOK_PAST = 4
"""Requests without room, of all and of one tenant, that a step looks past: bounds its work."""


class WaitingQueue:
    def __init__(self, batch_load: int) -> None:
        self._requests: list[Request] = []
        self._batch_load = batch_load
        self._passed: list[Request] = []
        """Those of this step that found no room."""

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: Request) -> None:
        insort(self._requests, request, key=lambda one: one.order)

    def remove(self, request: Request) -> None:
        self._requests.remove(request)

    def candidates(self, running: Sequence[Request]) -> Iterator[Request]:
        """Whose turn it is, in order. The caller says `let_in` or `no_room` of each, or neither."""
        self._passed = []
        load = sum(one.rank < BATCH_RANK for one in chain(self._requests, running))
        for request in list(self._requests):
            if request.rank == BATCH_RANK and load >= self._batch_load:
                return
            if self._ends_here():
                return
            if not self._waits_behind_its_own(request):
                yield request

    def no_room(self, request: Request) -> None:
        """`refused_for` says why."""
        self._passed.append(request)

    def let_in(self, request: Request) -> None:
        self.remove(request)
        for one in self._passed:
            alike = one.refused_for == "node" or one.tenant == request.tenant
            if one.rank == request.rank and alike:
                one.overtaken += 1

    def _ends_here(self) -> bool:
        passed = [one for one in self._passed if one.refused_for == "node"]
        return _exhausted(passed)

    def _waits_behind_its_own(self, request: Request) -> bool:
        own = [
            one
            for one in self._passed
            if one.tenant == request.tenant and one.refused_for == "tenant"
        ]
        return _exhausted(own)


def _exhausted(passed: Sequence[Request]) -> bool:
    """Nobody behind these may be looked at any more."""
    return len(passed) >= _LOOK_PAST or any(one.overtaken >= MAX_OVERTAKEN for one in passed)

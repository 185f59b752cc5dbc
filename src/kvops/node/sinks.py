"""The requests that an engine has, and where the news of each go. One that ended or was given up is gone from here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from kvops.errors import RequestError
from kvops.node.wire import TokenDelta


class Sink(Protocol):
    """Where the news of one engine request go."""

    def started(self) -> None: ...

    def delta(self, delta: TokenDelta) -> None: ...

    def lost(self, error: RequestError) -> None: ...


class Sinks:
    def __init__(self) -> None:
        self._by_id: dict[str, Sink] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def add(self, request_id: str, sink: Sink) -> None:
        self._by_id[request_id] = sink

    def remove(self, request_id: str) -> bool:
        """False where it was not here any more."""
        return self._by_id.pop(request_id, None) is not None

    def started(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            if sink := self._by_id.get(request_id):
                sink.started()

    def moved(self, deltas: Iterable[TokenDelta]) -> None:
        for delta in deltas:
            sink = self._by_id.get(delta.request_id)
            if delta.finish is not None:
                self._by_id.pop(delta.request_id, None)
            if sink is not None:
                sink.delta(delta)

    def lose_all(self, error: RequestError) -> None:
        sinks, self._by_id = list(self._by_id.values()), {}
        for sink in sinks:
            sink.lost(error)

"""Questions to the engine that have one answer each: matched by number, bounded in time, lost with the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kvops.errors import NotReady
from kvops.node.wire import FlushPrefixCache, GetKvMap
from kvops.telemetry.snapshot import KvMap

_SECONDS = 10.0


class Queries:
    def __init__(self, send: Callable[[GetKvMap | FlushPrefixCache], None]) -> None:
        self._send = send
        self._waiting: dict[int, asyncio.Future[KvMap | int]] = {}
        self._last = 0

    async def ask(self, make: Callable[[int], GetKvMap | FlushPrefixCache]) -> KvMap | int:
        """Raises NotReady when no answer comes."""
        self._last += 1
        query = self._last
        future: asyncio.Future[KvMap | int] = asyncio.get_running_loop().create_future()
        self._waiting[query] = future
        self._send(make(query))
        try:
            async with asyncio.timeout(_SECONDS):
                return await future
        except TimeoutError:
            raise NotReady(f"the engine did not answer within {_SECONDS:.0f} s.") from None
        finally:
            del self._waiting[query]

    def answer(self, query: int, value: KvMap | int) -> None:
        future = self._waiting.get(query)
        if future is not None and not future.done():
            future.set_result(value)

    def lose_all(self) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(NotReady("the engine died."))

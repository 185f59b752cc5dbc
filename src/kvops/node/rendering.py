"""Where chat templates run: one at a time, in a thread of its own, each for a bounded time.

A template that hangs holds up other chats for as long as it runs, and nothing else: not the event loop, not
completions, not the end of the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from kvops.errors import QueueFull, TemplateTimeout
from kvops.threads import in_thread

T = TypeVar("T")
RENDER_SECONDS = 5.0
TURN_SECONDS = 10.0
MAX_WAITING = 256


class Renderer:
    def __init__(
        self, *, render_seconds: float = RENDER_SECONDS, turn_seconds: float = TURN_SECONDS
    ) -> None:
        self._render_seconds, self._turn_seconds = render_seconds, turn_seconds
        self._turn = asyncio.Semaphore(1)
        self._waiting = 0

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises. Raises QueueFull where its turn does not come, TemplateTimeout where
        it does not end in time; it then keeps its turn until it does."""
        await self._take_turn()
        result = in_thread(work, "kvops-render")
        result.add_done_callback(self._end_turn)
        try:
            async with asyncio.timeout(self._render_seconds):
                return await asyncio.shield(result)
        except TimeoutError:
            raise TemplateTimeout(
                f"the model's chat template was not done within {self._render_seconds:g} s.",
                param="messages",
                hint="Use /v1/completions.",
            ) from None

    async def _take_turn(self) -> None:
        if self._waiting >= MAX_WAITING:
            raise QueueFull(f"{MAX_WAITING} chats wait to be rendered.", hint="Try again later.")
        self._waiting += 1
        try:
            async with asyncio.timeout(self._turn_seconds):
                await self._turn.acquire()
        except TimeoutError:
            raise QueueFull(
                f"other chats took the {self._turn_seconds:g} s that this one may wait to be rendered.",
                hint="Try again later.",
            ) from None
        finally:
            self._waiting -= 1

    def _end_turn(self, result: asyncio.Future[T]) -> None:
        self._turn.release()
        if not result.cancelled():
            result.exception()  # asked for, so that a late one is not reported as forgotten

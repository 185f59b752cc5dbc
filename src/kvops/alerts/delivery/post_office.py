"""Empties the outbox: a task a channel, one message at a time, so that one receiver that hangs delays no other."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable

from kvops.alerts.book import OUTCOMES, Attempt, Book, Message
from kvops.alerts.delivery.channels import Channel, DeliveryFailed
from kvops.alerts.delivery.chat import Chat
from kvops.alerts.delivery.webhook import post
from kvops.alerts.dispatch import Terms, next_due, settle


class PostOffice:
    """`on_attempt` is awaited after each attempt, when the book already holds how it went."""

    def __init__(
        self,
        book: Book,
        terms: Callable[[], Terms],
        on_attempt: Callable[[Channel, Message, Attempt], Awaitable[None]],
    ) -> None:
        self._book = book
        self._terms = terms
        self._on_attempt = on_attempt
        self._chat = Chat()
        self._tasks: dict[Channel, tuple[asyncio.Task[None], asyncio.Event]] = {}
        self.counts: dict[str, dict[str, int]] = {}
        """Attempts by channel and outcome."""

    @property
    def channels(self) -> tuple[Channel, ...]:
        return tuple(self._tasks)

    def serve(self, channels: Iterable[Channel]) -> None:
        """Exactly these from now on."""
        wanted = list(channels)
        for gone in [channel for channel in self._tasks if channel not in wanted]:
            self._tasks.pop(gone)[0].cancel()
        for channel in wanted:
            if channel not in self._tasks:
                self.counts.setdefault(channel.name, dict.fromkeys(OUTCOMES, 0))
                news = asyncio.Event()
                task = asyncio.create_task(self._empty(channel, news))
                self._tasks[channel] = task, news

    def look(self) -> None:
        """The outbox has changed."""
        for _, news in self._tasks.values():
            news.set()

    async def close(self) -> None:
        tasks = [task for task, _ in self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()

    async def _empty(self, channel: Channel, news: asyncio.Event) -> None:
        while True:
            news.clear()
            due = next_due(self._book, channel.name, time.time())
            if due is None or due[1] > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(None if due is None else due[1]):
                        await news.wait()
            else:
                await self._attempt(channel, due[0])

    async def _attempt(self, channel: Channel, message: Message) -> None:
        began = time.monotonic()
        error = ""
        try:
            await (post if channel.kind == "webhook" else self._chat.send)(channel, message)
        except DeliveryFailed as failed:
            error = str(failed)
        except Exception as defect:  # a channel whose task dies would be silent for ever
            error = f"kvops failed: {type(defect).__name__}"
        now, seconds = time.time(), time.monotonic() - began
        attempt = settle(self._book, channel.name, message, error, seconds, self._terms(), now)
        self.counts[channel.name][attempt.outcome] += 1
        await self._on_attempt(channel, message, attempt)

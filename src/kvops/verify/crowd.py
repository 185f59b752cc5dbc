"""Many streams opened at once and held, so that a node's bounds are reached while one looks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx

from kvops.errors import NodeProtocolError
from kvops.verify.api import (
    CHECK_BOUND,
    Api,
    Reply,
    StreamRefused,
    delta_text,
    first_choice,
    json_object,
)
from kvops.verify.context import pause

PATH = "/v1/completions"
State = Literal["sent", "streaming", "refused", "ended", "failed", "lost"]
"""`sent`: no text yet, so it waits or is being read. `failed`: ended with an error event. `lost`: no right end."""


@dataclass
class Guest:
    """One stream of a crowd."""

    sent_at: float = field(default_factory=time.monotonic)
    state: State = "sent"
    reply: Reply | None = None
    """Of a refused one."""
    error: str | None = None
    """Code of a refused or failed one."""
    seconds: float | None = None
    """From sending to its refusal or end."""
    task: asyncio.Task[None] | None = None

    @property
    def in_flight(self) -> bool:
        return self.state in ("sent", "streaming")

    def settle(self, state: State, error: str | None = None) -> None:
        self.state, self.error = state, error
        self.seconds = time.monotonic() - self.sent_at


class Crowd:
    """Streams of one client. Made by `gathered`, which lets all of them go at its end."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.guests: list[Guest] = []

    def invite(self, count: int, body: dict[str, Any]) -> list[Guest]:
        """Open `count` streams of `body` at once."""
        invited = [Guest() for _ in range(count)]
        for guest in invited:
            guest.task = asyncio.create_task(self._hold(guest, body))
        self.guests += invited
        return invited

    def those(self, state: State) -> list[Guest]:
        return [guest for guest in self.guests if guest.state == state]

    @property
    def in_flight(self) -> int:
        return sum(guest.in_flight for guest in self.guests)

    async def dismiss(self, guests: list[Guest]) -> None:
        """Hang up on them."""
        tasks = [guest.task for guest in guests if guest.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _hold(self, guest: Guest, body: dict[str, Any]) -> None:
        try:
            async with self._api.events(PATH, body, silence=CHECK_BOUND) as events:
                async for payload in events:
                    self._note(guest, payload)
        except StreamRefused as refused:
            guest.reply = refused.reply
            code = refused.reply.error.get("code")
            guest.settle("refused", None if code is None else str(code))
        except (httpx.HTTPError, NodeProtocolError) as error:
            guest.settle("lost", type(error).__name__)
        if guest.in_flight:
            guest.settle("ended")

    def _note(self, guest: Guest, payload: str) -> None:
        event = json_object(payload)
        if isinstance(event.get("error"), dict):
            guest.settle("failed", str(event["error"].get("code")))
        elif guest.state == "sent" and delta_text(first_choice(event)):
            guest.state = "streaming"


@asynccontextmanager
async def gathered(api: Api) -> AsyncIterator[Crowd]:
    crowd = Crowd(api)
    try:
        yield crowd
    finally:
        await crowd.dismiss(crowd.guests)


async def until(holds: Callable[[], bool], seconds: float) -> bool:
    """Whether `holds` became true within so many seconds."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() >= deadline:
            return False
        await pause()
    return True

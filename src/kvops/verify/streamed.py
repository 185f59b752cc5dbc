"""Reads a streamed answer to its end, and notes whatever in its form a client could stumble over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from kvops.load.pieces import Said
from kvops.units import format_duration
from kvops.verify.api import Api, delta_said, first_choice, json_object

DONE = "[DONE]"
STREAM_TIMEOUT = 120.0
"""Seconds after which a stream that still goes on is cut."""
SPARE_EVENTS = 64
"""Beyond one a token: roles, empty deltas, finish, usage. More is a stream without end."""


class StreamedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    """Of the answer itself: neither thinking nor tool calls."""
    deltas: int
    """Chunks with a token, of thinking and tool calls too: the role chunk of a chat stream is none."""
    first_delta_seconds: float | None
    finish_reasons: tuple[str, ...]
    usage: dict[str, Any]
    done: bool
    """The stream ended with `[DONE]`."""
    malformed: int
    error: str | None
    """Code of a terminal error event."""
    roles: int = 0
    """Deltas with a role."""
    usages: int = 0
    """Events with a usage object."""
    after_finish: int = 0
    """Deltas with a token that came after a finish_reason."""
    after_done: int = 0
    """Events after `[DONE]`."""
    cut: str = ""
    """Why it was left before its end; empty when it ended by itself."""
    thinking: str = ""
    calls: str = ""

    @property
    def said(self) -> Said:
        return Said(self.text, self.thinking, self.calls)


class _Notes:
    """What was seen of one stream so far."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self.said: list[Said] = []
        self.finish: list[str] = []
        self.usage: dict[str, Any] = {}
        self.first: float | None = None
        self.done = False
        self.error: str | None = None
        self.malformed = self.roles = self.usages = self.after_finish = self.after_done = 0
        self.cut = ""

    def take(self, payload: str) -> None:
        self.after_done += self.done
        if payload == DONE:
            self.done = True
            return
        event = json_object(payload)
        self.malformed += not event
        if isinstance(event.get("error"), dict):
            self.error = str(event["error"].get("code"))
        if isinstance(event.get("usage"), dict):
            self.usage = event["usage"]
            self.usages += 1
        self._take_choice(first_choice(event))

    def _take_choice(self, choice: dict[str, Any]) -> None:
        delta = choice.get("delta")
        self.roles += isinstance(delta, dict) and isinstance(delta.get("role"), str)
        if said := delta_said(choice):
            self.first = time.monotonic() - self._started if self.first is None else self.first
            self.said.append(said)
            self.after_finish += bool(self.finish)
        if isinstance(choice.get("finish_reason"), str):
            self.finish.append(choice["finish_reason"])

    def answer(self) -> StreamedAnswer:
        return StreamedAnswer(
            text="".join(one.text for one in self.said),
            thinking="".join(one.thinking for one in self.said),
            calls="".join(one.calls for one in self.said),
            deltas=len(self.said),
            first_delta_seconds=self.first,
            finish_reasons=tuple(self.finish),
            usage=self.usage,
            done=self.done,
            malformed=self.malformed,
            error=self.error,
            roles=self.roles,
            usages=self.usages,
            after_finish=self.after_finish,
            after_done=self.after_done,
            cut=self.cut,
        )


async def read_stream(
    api: Api, path: str, body: dict[str, Any], *, within: float = STREAM_TIMEOUT
) -> StreamedAnswer:
    """Read one streamed completion or chat completion to its end, or to a bound, which `cut` then names.

    Its bounds are `within` seconds and, where the body has `max_tokens`, that many events and some.
    Raises StreamRefused when the answer is no event stream, httpx errors as they are.
    """
    notes = _Notes()
    most = body.get("max_tokens", 0) + SPARE_EVENTS if "max_tokens" in body else None
    try:
        async with asyncio.timeout(within), api.events(path, body) as events:
            count = 0
            async for payload in events:
                count += 1
                if most is not None and count > most:
                    notes.cut = f"still going after {most} events"
                    break
                notes.take(payload)
    except TimeoutError:
        notes.cut = f"still going after {format_duration(within)}"
    return notes.answer()


async def first_delta(events: AsyncIterator[str]) -> bool:
    """Read up to the first token of a stream; False when it ended without any."""
    async for payload in events:
        if payload != DONE and delta_said(first_choice(json_object(payload))):
            return True
    return False

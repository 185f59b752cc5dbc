"""A drill of alert delivery: a real rule fires on a drill's reading, and every receiver must take its message.

Invariant: passed means that each channel answered 2xx to a message with this drill's nonce. No channel is no pass.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from kvops.alerts.book import Attempt, Book, Message
from kvops.alerts.delivery.channels import Channel
from kvops.alerts.rules import DRILL
from kvops.config.load import is_loopback
from kvops.errors import DrillRefused, InvalidRequest

SINK = "drill-sink"
_SINK_TIMEOUT = 5.0


@dataclass
class _Drill:
    nonce: str
    sink: tuple[Channel, ...]
    names: tuple[str, ...]
    began: float = field(default_factory=time.monotonic)
    fired_after: float | None = None
    confirmed: dict[str, float] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def outcome(self) -> dict[str, Any]:
        """Seconds are counted from when the drill was asked for."""
        rows = [self._row(name) for name in self.names]
        return {
            "nonce": self.nonce,
            "passed": all(row["delivered"] for row in rows),
            "fired_after_seconds": self.fired_after,
            "channels": rows,
        }

    def _row(self, name: str) -> dict[str, Any]:
        seconds = self.confirmed.get(name)
        silent = (
            "no attempt was made in time" if self.fired_after else "the rule did not fire in time"
        )
        return {
            "channel": name,
            "delivered": seconds is not None,
            "seconds": seconds,
            "error": None if seconds is not None else self.errors.get(name, silent),
        }  # fmt: skip


class Drills:
    """At most one at a time."""

    def __init__(self) -> None:
        self._current: _Drill | None = None

    @property
    def nonce(self) -> str:
        """Of the drill that is on; empty without one."""
        return self._current.nonce if self._current else ""

    @property
    def channels(self) -> tuple[Channel, ...]:
        """What is told for the time of the drill only."""
        return self._current.sink if self._current else ()

    async def run(
        self, channels: Sequence[Channel], patience: float, sink: str | None
    ) -> dict[str, Any]:
        """Waits `patience` seconds at most. Raises DrillRefused, InvalidRequest for a `sink` not on this machine."""
        if self._current is not None:
            raise DrillRefused("another drill is on.", hint="Wait until it is over.")
        extra = (_sink(sink),) if sink else ()
        names = tuple(channel.name for channel in (*channels, *extra))
        if not names:
            raise DrillRefused(
                "no channel is configured: nobody would be told of an alert.",
                hint="Add one under alerts.channels, or try with kvops alerts test --sink.",
            )
        drill = self._current = _Drill(secrets.token_hex(8), extra, names)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await drill.done.wait()
        finally:
            self._current = None
        return drill.outcome()

    def evaluated(self, book: Book) -> None:
        """The rules were looked at."""
        drill, state = self._current, book.states.get(DRILL)
        if drill is None or state is None or drill.fired_after is not None:
            return
        if state.phase == "firing" and state.labels.get("nonce") == drill.nonce:
            drill.fired_after = time.monotonic() - drill.began

    def attempted(self, channel: Channel, message: Message, attempt: Attempt) -> None:
        """A message was tried."""
        drill = self._current
        if drill is None or message.labels.get("nonce") != drill.nonce:
            return
        if attempt.outcome == "delivered":
            drill.confirmed.setdefault(channel.name, time.monotonic() - drill.began)
        else:
            drill.errors[channel.name] = attempt.error
        if _all_in(drill.names, drill.confirmed):
            drill.done.set()


def _all_in(names: Iterable[str], confirmed: dict[str, float]) -> bool:
    return all(name in confirmed for name in names)


def _sink(url: str) -> Channel:
    """Only on this machine: a drill is no way to have the node post elsewhere."""
    try:
        parts = urlsplit(url)
        fits = parts.scheme == "http" and is_loopback(parts.hostname or "") and bool(parts.port)
    except ValueError:
        fits = False
    if not fits:
        raise InvalidRequest("must be http://127.0.0.1:PORT/… on the node's machine.", param="sink")
    return Channel(SINK, "webhook", url, _SINK_TIMEOUT)

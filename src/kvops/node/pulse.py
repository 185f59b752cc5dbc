"""Whether an engine is hung, by its own signs of life: what the daemon still waits for may be gone before it shows.

An engine that serves speaks at least once a heartbeat, and while it holds requests it finishes steps. One that loads
speaks for each part it has done: an import, a tensor, a step of its warm-up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Literal

from kvops.config.settings import Settings
from kvops.node.wire import EngineStats

SILENCE_AT_LEAST = 3.0
"""Seconds: some heartbeats of an idle engine, which comes once a second."""
STALLED_SECONDS = 1.0
"""How long a hung engine is reported as such before it is replaced."""
_WATCH_SECONDS = 0.25


class Pulse:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._begin("none")

    def born(self) -> None:
        """A new process, which has to load."""
        self._begin("loads")

    def loaded(self) -> None:
        """It has loaded, or becomes ready."""
        self._begin("serves")

    def ended(self) -> None:
        """There is no process that could be hung."""
        self._begin("none")

    def _begin(self, life: Literal["none", "loads", "serves"]) -> None:
        self._life = life
        self._heard_at = self._moved_at = time.monotonic()
        self._steps, self._holds = 0, False

    def heard(self) -> None:
        self._heard_at = time.monotonic()

    def moved(self) -> None:
        """A step finished, or an engine without work was given some."""
        self._moved_at = time.monotonic()

    def told(self, stats: EngineStats) -> None:
        if stats.steps != self._steps:
            self.moved()
        self._steps, self._holds = stats.steps, stats.running + stats.waiting > 0

    @property
    def holds_work(self) -> bool:
        """By the engine's own word: also requests that their clients have given up."""
        return self._holds

    def seconds_without(self, pending: bool) -> float:
        """Since the last step while there is work, since the last sign of life otherwise."""
        return time.monotonic() - (self._moved_at if pending else self._heard_at)

    def overdue(self, pending: bool) -> float:
        """Seconds that it is hung; negative while it is not."""
        if self._life == "none":
            return -1.0
        now, runtime = time.monotonic(), self._settings.config.runtime
        if self._life == "loads":
            return now - self._heard_at - runtime.load_stall_after
        stall_after = runtime.stall_after
        silent = now - self._heard_at - max(stall_after, SILENCE_AT_LEAST)
        still = now - self._moved_at - stall_after
        return max(silent, still) if pending else silent

    async def watch(self, pending: Callable[[], bool], replace: Callable[[], None]) -> None:
        """A hung engine is reported (`overdue`), and replaced if it stays so for long enough to be seen."""
        while True:
            runtime = self._settings.config.runtime
            stall_after = min(runtime.stall_after, runtime.load_stall_after)
            pause = min(_WATCH_SECONDS, stall_after / 4)
            slept_at = time.monotonic()
            await asyncio.sleep(pause)
            # A daemon that was itself held up has not read what the engine said meanwhile.
            punctual = time.monotonic() - slept_at < pause + stall_after / 2
            if punctual and self.overdue(pending()) > STALLED_SECONDS:
                replace()

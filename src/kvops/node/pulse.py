"""Whether an engine is hung, by its own signs of life: what the daemon still waits for may be gone before it shows.

An engine speaks at least once a heartbeat, and while it holds requests it finishes steps.
"""

from __future__ import annotations

import time

from kvops.config.settings import Settings
from kvops.node.wire import EngineStats

SILENCE_AT_LEAST = 3.0
"""Seconds: some heartbeats of an idle engine, which comes once a second."""


class Pulse:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.begin()

    def begin(self) -> None:
        """A new engine, or one that becomes ready."""
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
        now, stall_after = time.monotonic(), self._settings.config.runtime.stall_after
        silent = now - self._heard_at - max(stall_after, SILENCE_AT_LEAST)
        still = now - self._moved_at - stall_after
        return max(silent, still) if pending else silent

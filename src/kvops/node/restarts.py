"""How often a dead engine is replaced: with a growing pause, and not for ever."""

from __future__ import annotations

import time
from collections import deque

from kvops.config.settings import Settings
from kvops.units import format_duration


class RestartBudget:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._recent: deque[float] = deque()

    def spend(self) -> float | None:
        """Seconds to wait before the next start; None when there were too many within the window."""
        bounds = self._settings.config.restart
        now = time.monotonic()
        self._recent.append(now)
        while self._recent[0] < now - bounds.window:
            self._recent.popleft()
        if len(self._recent) > bounds.budget:
            return None
        return min(bounds.backoff * 2.0 ** min(len(self._recent) - 1, 64), bounds.backoff_max)

    def __str__(self) -> str:
        bounds = self._settings.config.restart
        return (
            f"{len(self._recent)} times in {format_duration(bounds.window)}, "
            f"restart.budget allows {bounds.budget}"
        )

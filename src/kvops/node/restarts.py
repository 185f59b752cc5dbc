"""How often a dead engine is replaced: with a growing pause, and not for ever."""

from __future__ import annotations

import time
from collections import deque

RESTART_BUDGET = 5
RESTART_WINDOW = 600.0
_BACKOFF = 0.5
_BACKOFF_CAP = 30.0


class RestartBudget:
    def __init__(self) -> None:
        self._recent: deque[float] = deque()

    def spend(self) -> float | None:
        """Seconds to wait before the next start; None when there were too many within the window."""
        now = time.monotonic()
        self._recent.append(now)
        while self._recent[0] < now - RESTART_WINDOW:
            self._recent.popleft()
        if len(self._recent) > RESTART_BUDGET:
            return None
        return min(_BACKOFF * 2.0 ** (len(self._recent) - 1), _BACKOFF_CAP)

    def __str__(self) -> str:
        return f"{len(self._recent)} times in {RESTART_WINDOW / 60:.0f} min"

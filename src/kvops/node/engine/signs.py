"""That a load goes on, told by what it has done and never by a clock alone: a hung one falls silent."""

from __future__ import annotations

import time
from collections.abc import Callable

_EVERY_SECONDS = 1.0


class Signs:
    """Call it for each part of `phase` that is done; `progress` hears of one a second, without a detail."""

    def __init__(self, progress: Callable[[str, str], None], phase: str) -> None:
        self._progress = progress
        self._phase = phase
        self._told_at = time.monotonic()

    def __call__(self) -> None:
        now = time.monotonic()
        if now - self._told_at >= _EVERY_SECONDS:
            self._told_at = now
            self._progress(self._phase, "")

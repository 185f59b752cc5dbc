"""Memory of the processes below a node of this machine: its engine's own, which no other program is part of."""

from __future__ import annotations

import psutil

LIST_EVERY = 10
"""Looks after which children are looked for again: it reads a file of every process of the machine."""


class Children:
    """Of one process; all of them together."""

    def __init__(self, pid: int) -> None:
        self._pid, self._looks = pid, 0
        self._found: list[psutil.Process] = []

    def own_bytes(self) -> float | None:
        """Resident and not backed by a file; None without a child, or when one went away just now."""
        try:
            if self._looks % LIST_EVERY == 0:
                self._found = psutil.Process(self._pid).children(recursive=True)
            self._looks += 1
            read = [process.memory_info() for process in self._found]
        except psutil.Error:
            self._looks = 0
            return None
        return float(sum(one.rss - getattr(one, "shared", 0) for one in read)) if read else None

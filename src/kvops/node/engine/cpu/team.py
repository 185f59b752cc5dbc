"""The threads that run kernels: the caller and its helpers, one pool for all that this engine computes."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

import numpy as np

from kvops.node.engine.cpu.sync import WORDS

Job = tuple[Callable[..., None], int, int, tuple[Any, ...]] | None


class Team:
    """Helpers sleep between steps; within a step they meet at barriers."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._sync = np.zeros(WORDS, np.int64)
        self._desks: list[SimpleQueue[Job]] = [SimpleQueue() for _ in range(threads - 1)]
        for desk in self._desks:
            threading.Thread(target=_work, args=(desk,), name="kvops-kernel", daemon=True).start()
        weakref.finalize(self, _dismiss, self._desks)

    def run(self, kernel: Callable[..., None], threads: int, *arguments: Any) -> None:
        """Call `kernel(thread, threads, sync, *arguments)` on `threads` threads; it ends with a barrier."""
        job = (self._sync, *arguments)
        for number in range(1, threads):
            self._desks[number - 1].put((kernel, number, threads, job))
        kernel(0, threads, *job)

    def signature(self, *arguments: Any) -> tuple[Any, ...]:
        """What `run` would call a kernel with, to compile it before."""
        return (0, self.threads, self._sync, *arguments)


def _work(desk: SimpleQueue[Job]) -> None:
    while (job := desk.get()) is not None:
        kernel, number, threads, arguments = job
        kernel(number, threads, *arguments)
        del job, arguments


def _dismiss(desks: Sequence[SimpleQueue[Job]]) -> None:
    for desk in desks:
        desk.put(None)

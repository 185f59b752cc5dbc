"""A bounded queue and the one thread that empties it, so that a slow or dead disk never holds up who has to say
something. What does not fit is refused, never waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Backlog(Generic[T]):
    """`write` gets what has gathered, in order, one call at a time. It raises nothing and may block."""

    def __init__(
        self, name: str, write: Callable[[list[T]], None], *, bound: int, gather: float = 0.0
    ) -> None:
        """`bound`: of the sizes of all that is not written yet. `gather`: seconds that a first item waits for more."""
        self._write = write
        self._bound = bound
        self._gather = gather
        self._items: list[T] = []
        self._waiting = 0
        """The sizes of `_items`."""
        self._held = 0
        """With what is being written."""
        self._changed = threading.Condition()
        self._hurry = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def fill(self) -> float:
        """Held share of the bound."""
        return self._held / self._bound

    def put(self, item: T, size: int = 1) -> bool:
        """False: there is no room for it, or nobody to write it."""
        with self._changed:
            if self._closed or self._held + size > self._bound:
                return False
            if not self._items:
                self._changed.notify_all()
            self._items.append(item)
            self._waiting += size
            self._held += size
        return True

    def flush(self, seconds: float) -> bool:
        """Wait until nothing is held; False when it still is after `seconds`."""
        deadline = time.monotonic() + seconds
        self._hurry.set()
        try:
            with self._changed:
                while self._held and (left := deadline - time.monotonic()) > 0:
                    self._changed.wait(left)
                return not self._held
        finally:
            self._hurry.clear()

    def close(self, seconds: float) -> bool:
        """Take no more and write what is held, for at most `seconds`; False when something is left."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._hurry.set()
        if self._thread is not threading.current_thread():
            self._thread.join(seconds)
        return not self._held

    def _run(self) -> None:
        while batch := self._take():
            items, size = batch
            self._write(items)
            with self._changed:
                self._held -= size
                self._changed.notify_all()

    def _take(self) -> tuple[list[T], int] | None:
        """None at the end."""
        with self._changed:
            while not self._items:
                if self._closed:
                    return None
                self._changed.wait()
        if self._gather:
            self._hurry.wait(self._gather)
        with self._changed:
            batch = self._items, self._waiting
            self._items, self._waiting = [], 0
            return batch

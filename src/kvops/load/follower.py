"""What is known of a run while it goes on, out of the lines it has written so far."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from kvops.load import runs
from kvops.load.records import CLIENT_FILE, REQUESTS_FILE, ClientSample, RequestRecord, Tail


class Progress(msgspec.Struct):
    elapsed: float = 0.0
    records: list[RequestRecord] = []
    client: ClientSample | None = None
    stopping: bool = False
    """The user ended the run, and requests in flight have STOP_TIMEOUT."""


class Follower:
    """Reads what the run has written since the last look and passes it on."""

    def __init__(self, made: runs.Run, on_progress: Callable[[Progress], None]) -> None:
        self._started, self._on_progress = made.info.started_at, on_progress
        self._requests = Tail(made.folder / REQUESTS_FILE, RequestRecord)
        self._client = Tail(made.folder / CLIENT_FILE, ClientSample)
        self._progress = Progress()

    def tell_stopping(self) -> None:
        self._progress.stopping = True
        self.look()

    def look(self) -> None:
        self._progress.records += self._requests.new()
        self._progress.client = next(iter(self._client.new()[-1:]), self._progress.client)
        self._progress.elapsed = time.time() - self._started
        self._on_progress(self._progress)

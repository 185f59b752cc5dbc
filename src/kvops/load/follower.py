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
    """All workers together: the sum of what they have in flight, the worst of how they keep up."""
    stopping: bool = False
    """The user ended the run, and requests in flight have STOP_TIMEOUT."""


class Follower:
    """Reads what the run has written since the last look and passes it on."""

    def __init__(self, made: runs.Run, on_progress: Callable[[Progress], None]) -> None:
        self._started, self._on_progress = time.perf_counter(), on_progress
        self._requests = Tail(made.folder / REQUESTS_FILE, RequestRecord)
        self._client = Tail(made.folder / CLIENT_FILE, ClientSample)
        self._latest: dict[int, ClientSample] = {}
        """By worker."""
        self._progress = Progress()

    def tell_stopping(self) -> None:
        self._progress.stopping = True
        self.look()

    def look(self) -> None:
        self._progress.records += self._requests.new()
        self._latest |= {sample.worker: sample for sample in self._client.new()}
        self._progress.client = _together(list(self._latest.values()))
        self._progress.elapsed = time.perf_counter() - self._started
        self._on_progress(self._progress)


def _together(samples: list[ClientSample]) -> ClientSample | None:
    if not samples:
        return None
    return ClientSample(
        at=max(one.at for one in samples),
        users=sum(one.users for one in samples),
        in_flight=sum(one.in_flight for one in samples),
        cpu=max(one.cpu for one in samples),
        lag=max(one.lag for one in samples),
        late=max(one.late for one in samples),
    )

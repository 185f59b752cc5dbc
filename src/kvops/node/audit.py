"""Who asked this node for what, and how it ended: one line for each decision on a request and each act of an
operator. No content, no key. Whoever records only queues; one thread chains, writes and syncs.

While the disk refuses, records wait in the queue. Where it is full, `fail_open` counts what is lost and says so in the
chain as soon as it can, and `fail_closed` takes no requests.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import structlog

from kvops import __version__, registry
from kvops.config.load import LoadedConfig
from kvops.config.schema import Audit
from kvops.errors import AuditUnavailable
from kvops.node.audit_chain import Chain, Record
from kvops.node.backlog import Backlog
from kvops.node.logs import Flood

Event = Literal["accepted", "finished", "answered", "refused", "action", "lost", "held_back"]
QUEUE_RECORDS = 20_000
GATHER_SECONDS = 0.05
"""How long a record waits for others to share its fsync: what a power cut may lose."""
RETRY_SECONDS = 0.5
CLOSE_SECONDS = 5.0
REFUSALS_PER_WINDOW = 100
"""Lines for refusals of nobody known, of one code; the rest is counted in one line."""
WINDOW_SECONDS = 10.0
_CROWDED = 0.5
"""Beyond this fill of the queue fail_closed takes no requests: those taken still have records to come."""

log = structlog.get_logger("kvops.audit")


class AuditLog:
    """Safe for all threads."""

    def __init__(self, folder: Path, settings: Audit) -> None:
        self._chain = Chain(folder, max_bytes=settings.max_bytes, keep=settings.keep)
        self._closed_on_full = settings.on_full == "fail_closed"
        self._flood = Flood(REFUSALS_PER_WINDOW, WINDOW_SECONDS)
        self._lock = threading.Lock()
        self._told = 0
        self._ending = threading.Event()
        self.failing = False
        """The last try to write went wrong."""
        self.dropped = 0
        """Records lost since the start."""
        self._backlog: Backlog[tuple[float, Record]] = Backlog(
            "kvops-audit", self._write, bound=QUEUE_RECORDS, gather=GATHER_SECONDS
        )

    def record(self, event: Event, **facts: object) -> None:
        """Costs microseconds, whatever the disk does. A fact that is None is left out."""
        record = {"event": event, **{k: v for k, v in facts.items() if v is not None}}
        if not self._backlog.put((time.time(), record)):
            with self._lock:
                self.dropped += 1

    def refused_stranger(self, code: str, **facts: object) -> None:
        """A refusal of nobody known: a flood of them must not push all else out of the files that are kept."""
        held_back = self._flood.take(code)
        if held_back:
            self.record("held_back", code=code, records=held_back)
        if held_back is not None:
            self.record("refused", code=code, **facts)

    def action(
        self,
        what: str,
        who: str,
        *,
        before: str | None = None,
        after: str | None = None,
        **facts: object,
    ) -> None:
        """An act of an operator. `before` and `after`: hashes of what it changed."""
        self.record("action", what=what, who=who, before=before, after=after, **facts)

    def check(self) -> None:
        """Raises AuditUnavailable where no request may be taken without an audit."""
        if self._closed_on_full and (self.failing or self._backlog.fill > _CROWDED):
            raise AuditUnavailable("the node's audit cannot be written.")

    def flush(self, seconds: float) -> bool:
        """Wait until all is on the disk; False when it still is not after `seconds`."""
        return self._backlog.flush(seconds)

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Write what is left, for at most `seconds`."""
        self._ending.set()
        self._backlog.close(seconds)

    def _write(self, batch: list[tuple[float, Record]]) -> None:
        """Until it is written, or the node ends."""
        rows = [{"ts": _iso(at), **record} for at, record in batch]
        while not self._try(rows):
            if self._ending.is_set():
                self._lose(len(rows))
                return
            self._ending.wait(RETRY_SECONDS)

    def _try(self, rows: list[Record]) -> bool:
        lost = self.dropped - self._told
        told = [{"ts": _iso(time.time()), "event": "lost", "records": lost}] if lost else []
        try:
            self._chain.append([*rows, *told])
        except OSError as error:
            if not self.failing:
                log.error("audit_failing", error=error.strerror or type(error).__name__)
            self.failing = True
            return False
        self._told += lost
        if self.failing:
            log.warning("audit_written_again", lost=lost)
            self.failing = False
        return True

    def _lose(self, records: int) -> None:
        with self._lock:
            self.dropped += records
        log.error("audit_lost", records=records)


class NoAudit(AuditLog):
    """`audit.enabled: false`."""

    def __init__(self) -> None:
        self.failing, self.dropped = False, 0

    def record(self, event: Event, **facts: object) -> None:
        pass

    def refused_stranger(self, code: str, **facts: object) -> None:
        pass

    def check(self) -> None:
        pass

    def flush(self, seconds: float) -> bool:
        return True

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        pass


@contextlib.contextmanager
def audited(loaded: LoadedConfig) -> Iterator[AuditLog]:
    """For the life of a node, of which the first and the last line tell."""
    config = loaded.config
    folder = registry.audit_dir(config.name)
    audit = AuditLog(folder, config.audit) if config.audit.enabled else NoAudit()
    audit.action("start", f"uid {os.getuid()}", after=loaded.config_hash, version=__version__)
    try:
        yield audit
    finally:
        audit.action("stopped", "node")
        audit.close()


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")

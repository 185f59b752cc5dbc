"""The node's log: JSON lines in its folder, rotated by size. Never prompt text, never a key.

A line that cannot be kept, since the disk is full or its event floods, is counted (`dropped`) and nothing else.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import MutableMapping
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, TextIO

import structlog

from kvops.paths import make_private

MAX_BYTES = 10 * 2**20
BACKUPS = 3
LINES_PER_WINDOW = 1_000
"""Of one event."""
WINDOW_SECONDS = 10.0


def log_to(file: Path) -> None:
    """Send structlog's and the libraries' records to `file`, 0600."""
    make_private(file.parent)
    file.touch(mode=0o600)
    handler = NodeLog(file)
    stamps: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[_without_values, *stamps],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.INFO)
    for chatty in ("uvicorn.error", "asyncio", "httpx"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    structlog.configure(
        processors=[*stamps, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def dropped() -> int:
    """Lines that the node could not log since it started."""
    return sum(each.dropped for each in logging.getLogger().handlers if isinstance(each, NodeLog))


class NodeLog(RotatingFileHandler):
    """Never raises and never prints: a node with a full disk still serves."""

    def __init__(self, file: Path) -> None:
        self.dropped = 0
        self._flood = _Flood()
        super().__init__(file, maxBytes=MAX_BYTES, backupCount=BACKUPS, encoding="utf-8")

    def emit(self, record: logging.LogRecord) -> None:
        held_back = self._flood.take(_event(record))
        if held_back is None:
            self.dropped += 1
            return
        if held_back:
            super().emit(_held_back(record, held_back))
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """What is buffered would be written later, although it is counted here: the file is opened anew."""
        self.dropped += 1
        stream, self.stream = self.stream, None
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.close()

    def _open(self) -> TextIO:  # type: ignore[override]
        """At the start of a line, also after one that was cut short."""
        stream = super()._open()
        file = Path(self.baseFilename)
        if file.stat().st_size:
            with file.open("rb") as written:
                written.seek(-1, 2)
                if written.read(1) != b"\n":
                    stream.write("\n")
        return stream


class _Flood:
    """Counts the lines of each event in the current window. There are as many events as places that log."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._seen: dict[object, int] = {}
        self._over: dict[object, int] = {}

    def take(self, event: object) -> int | None:
        """How many lines of the event were held back in the last window, to be told once; None to hold this one."""
        now = time.monotonic()
        if now - self._began >= WINDOW_SECONDS:
            self._over = {key: n - LINES_PER_WINDOW for key, n in self._seen.items()}
            self._began, self._seen = now, {}
        self._seen[event] = self._seen.get(event, 0) + 1
        if self._seen[event] > LINES_PER_WINDOW:
            return None
        return max(self._over.pop(event, 0), 0)


def _event(record: logging.LogRecord) -> object:
    """Our events have names; of libraries, the place in their code counts as one."""
    if isinstance(record.msg, dict):
        return record.msg.get("event")
    return record.pathname, record.lineno


def _held_back(record: logging.LogRecord, lines: int) -> logging.LogRecord:
    event = record.msg.get("event") if isinstance(record.msg, dict) else record.name
    text = f"{lines} lines held back: {event}"
    return logging.LogRecord("kvops.logs", logging.WARNING, record.pathname, 0, text, (), None)


def _without_values(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A library's exception is named, not quoted: its text may hold a request."""
    record = event.get("_record")
    error = event.pop("exc_info", None) or getattr(record, "exc_info", None)
    if record is not None:
        record.exc_info = None
    if isinstance(error, tuple) and error[0] is not None:
        event["error"] = error[0].__name__
    return event

"""The node's log: JSON lines in its folder, beside what its engine process writes. Never prompt text, never a key.

Whoever logs only queues: one thread writes. A line that cannot be kept, since the disk is full or slow or its event
floods, is counted (`dropped`) and nothing else. All files together stay within `logging.total_bytes`.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import sys
import threading
import time
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import structlog

from kvops import failpoints, registry
from kvops.config.schema import Logging, NodeConfig
from kvops.errors import KvopsError, NodeError
from kvops.node import secrecy
from kvops.node.backlog import Backlog
from kvops.node.rotation import RotatedFile, aside
from kvops.paths import make_private

LINES_PER_WINDOW = 1_000
"""Of one event."""
WINDOW_SECONDS = 10.0
QUEUE_BYTES = 4 * 2**20
FLUSH_SECONDS = 2.0
_LIVE_FILES = 2
"""The node's and the engine's: what is put aside gets the room that they leave."""

log = structlog.get_logger("kvops.logs")


def log_to(file: Path, settings: Logging | None = None) -> None:
    """Send structlog's and the libraries' records to `file`, 0600, and what nobody catches too."""
    settings = settings or Logging()
    make_private(file.parent)
    handler = NodeLog(file, settings)
    handler.setFormatter(_formatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    set_level(settings.level)
    logging.captureWarnings(True)
    structlog.configure(
        processors=[*_stamps(), structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    secrecy.on_uncaught(lambda error: log.error("uncaught", **secrecy.facts_of(error)))


@contextlib.contextmanager
def logged(config: NodeConfig) -> Iterator[None]:
    """The node's log tells why it ended, also when it never came up. What nobody foresaw is told without its text."""
    log_to(registry.log_file(config.name), config.logging)
    try:
        yield
    except KvopsError as error:
        log.error("failed", error=error.code, message=error.message, next=error.hint or None)
        raise
    except Exception as error:
        log.error("failed", **secrecy.facts_of(error))
        raise NodeError(
            f"the node failed: {secrecy.described(error)}", hint="see kvops node logs"
        ) from None
    finally:
        flush()


def set_level(level: str) -> None:
    """Of kvops' own events, from now on."""
    logging.getLogger("kvops").setLevel(level.upper())


def on_loop_failure(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """asyncio's own report quotes what callbacks and tasks were given."""
    error = context.get("exception")
    if isinstance(error, asyncio.CancelledError):
        return  # of a future that nobody awaits any more
    log.error("loop_failure", **({} if error is None else secrecy.facts_of(error)))


def keep(file: Path, data: bytes) -> None:
    """Queue what a process of the node wrote, for a file beside the log. Counted as dropped where there is no log."""
    for each in _handlers():
        each.writer.put(file, data)


def dropped() -> int:
    """Lines that the node could not log since it started."""
    return sum(each.dropped for each in _handlers())


def flush(seconds: float = FLUSH_SECONDS) -> bool:
    """Wait until what was logged is written; False when it still is not after `seconds`."""
    return all(each.writer.flush(seconds) for each in _handlers())


HUNG_UP = "socket.send() raised exception."
"""What asyncio says at each write to a client that has gone. That clients go is counted and audited; these lines would
only crowd out others, and a node would warn of lost lines because somebody hung up."""


class LogWriter:
    """The thread that writes log files."""

    def __init__(self, settings: Logging) -> None:
        self._settings = settings
        self._files: dict[Path, RotatedFile] = {}
        self._lock = threading.Lock()
        self._backlog: Backlog[tuple[Path, bytes]] = Backlog(
            "kvops-log", self._write, bound=QUEUE_BYTES
        )
        self.flush = self._backlog.flush
        self.close = self._backlog.close
        self.dropped = 0

    def put(self, file: Path, data: bytes) -> None:
        if not self._backlog.put((file, data), len(data)):
            self._drop()

    def _write(self, batch: list[tuple[Path, bytes]]) -> None:
        for path, data in batch:
            try:
                failpoints.reach("log.write.enospc")
                if self._file(path).append(data):
                    self._make_room()
            except (OSError, ValueError):
                self._drop()

    def _file(self, path: Path) -> RotatedFile:
        if path not in self._files:
            self._files[path] = RotatedFile(path, self._settings.max_bytes)
            self._make_room()
        return self._files[path]

    def _make_room(self) -> None:
        """Remove the oldest of what was put aside, so that the live files may become full too."""
        found = [file for path in self._files for _, file in aside(path)]
        sizes = {file: (file.stat().st_mtime, file.stat().st_size) for file in found}
        room = self._settings.total_bytes - _LIVE_FILES * self._settings.max_bytes
        for file in sorted(sizes, key=sizes.__getitem__, reverse=True):
            room -= sizes[file][1]
            if room < 0:
                file.unlink()

    def _drop(self) -> None:
        with self._lock:
            self.dropped += 1


class NodeLog(logging.Handler):
    """Never raises, never prints, never waits: a node with a full disk still serves."""

    def __init__(self, file: Path, settings: Logging) -> None:
        super().__init__()
        self._file = file
        self._flood = Flood(LINES_PER_WINDOW, WINDOW_SECONDS)
        self._held_back = 0
        self.writer = LogWriter(settings)

    @property
    def dropped(self) -> int:
        return self._held_back + self.writer.dropped

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "asyncio" and record.msg == HUNG_UP:
            return
        told = self._flood.take(_event(record))
        if told is None:
            self._held_back += 1
            return
        if told:
            self._put(_held_back(record, told))
        self._put(record if isinstance(record.msg, dict) else _without_values(record))

    def close(self) -> None:
        self.writer.close(FLUSH_SECONDS)
        super().close()

    def _put(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:  # a value that cannot be shown must not fail who logged it
            self._held_back += 1
        else:
            self.writer.put(self._file, line.encode("utf-8", "replace") + b"\n")


class Flood:
    """Counts the lines of each event in the current window. There are as many events as places that log."""

    def __init__(self, most: int, seconds: float) -> None:
        self._most, self._seconds = most, seconds
        self._began = time.monotonic()
        self._seen: dict[object, int] = {}
        self._over: dict[object, int] = {}

    def take(self, event: object) -> int | None:
        """How many lines of the event were held back in the last window, to be told once; None to hold this one."""
        now = time.monotonic()
        if now - self._began >= self._seconds:
            over = {key: n - self._most for key, n in self._seen.items() if n > self._most}
            self._over = self._over | over
            self._began, self._seen = now, {}
        self._seen[event] = self._seen.get(event, 0) + 1
        if self._seen[event] > self._most:
            return None
        return self._over.pop(event, 0)


def _handlers() -> list[NodeLog]:
    return [each for each in logging.getLogger().handlers if isinstance(each, NodeLog)]


def _stamps() -> list[Any]:
    return [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]


def _formatter() -> logging.Formatter:
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_stamps(),
        processors=[
            _name_error,
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.JSONRenderer(),
        ],
    )


def _event(record: logging.LogRecord) -> object:
    """Our events have names; of libraries, the place in their code counts as one."""
    if isinstance(record.msg, dict):
        return record.msg.get("event")
    return record.pathname, record.lineno


def _held_back(record: logging.LogRecord, lines: int) -> logging.LogRecord:
    event = record.msg.get("event") if isinstance(record.msg, dict) else record.name
    text = f"{lines} lines held back: {event}"
    return logging.LogRecord("kvops.logs", logging.WARNING, record.pathname, 0, text, (), None)


def _without_values(record: logging.LogRecord) -> logging.LogRecord:
    """A library's line is told by its place and its pattern: a value, or a text made before, may be a request's."""
    told = copy.copy(record)
    pattern = record.msg if record.args and isinstance(record.msg, str) else "said"
    told.msg = f"{pattern} [{record.name} {record.filename}:{record.lineno}]"
    told.args, told.stack_info = (), None
    return told


def _name_error(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """An exception is named and placed, not quoted."""
    record = event.get("_record")
    found = event.pop("exc_info", None) or getattr(record, "exc_info", None)
    if record is not None:
        record.exc_info = record.exc_text = None
    if found is True:
        found = sys.exc_info()
    error = found[1] if isinstance(found, tuple) else found
    if isinstance(error, BaseException):
        event.update(secrecy.facts_of(error))
    return event

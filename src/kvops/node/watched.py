"""Files that are read again when they change while the node runs. What cannot be read changes nothing, and is seen."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from kvops.errors import KvopsError
from kvops.paths import open_regular

POLL_SECONDS = 0.5
"""A look is one stat a file. Not inotify: mounted secrets and network folders do not report their changes."""

Facts = Mapping[str, object]
Signature = tuple[tuple[int, ...] | None, ...]

log = structlog.get_logger("kvops.files")


@dataclass(frozen=True)
class Change:
    """What files say now is in force."""

    what: str
    who: str
    """Who owns the files: who wrote them, nobody can tell."""
    before: str | None
    """SHA-256 of what the files said."""
    after: str | None
    facts: Facts = field(default_factory=dict)


class WatchedFiles:
    """`reload` reads all of `files` and puts what they say in force, or raises ConfigError and leaves all as it was. It
    may tell what became different."""

    def __init__(
        self, what: str, files: tuple[Path, ...], reload: Callable[[], Facts | None]
    ) -> None:
        self.what = what
        self.reloads = 0
        self.failures = 0
        self.fault: str | None = None
        """Why what the files say now is not in force; None while it is."""
        self.on_change: Callable[[Change], None] = lambda change: None
        self._files = files
        self._reload = reload
        self._seen = self._signature()
        self._digest = self._hash()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            with contextlib.suppress(RuntimeError):  # no thread to be had now
                await self.look()

    async def look(self) -> None:
        """Read again what changed, and what could not be read at the last look."""
        # In a thread, since a folder that hangs must not stop the node.
        seen = await asyncio.to_thread(self._signature)
        changed = seen != self._seen
        if not changed and self.fault is None:
            return
        self._seen = seen
        try:
            facts = await asyncio.to_thread(self._reload) or {}
        except Exception as error:  # whatever it is, the watch goes on
            self._failed(error, changed)
        else:
            self.reloads += 1
            self.fault = None
            log.info("reloaded", what=self.what)
            before, self._digest = self._digest, await asyncio.to_thread(self._hash)
            who = await asyncio.to_thread(self._owner)
            self.on_change(Change(self.what, who, before, self._digest, facts))

    def _failed(self, error: Exception, changed: bool) -> None:
        reason = error.message if isinstance(error, KvopsError) else type(error).__name__
        if changed or reason != self.fault:
            self.failures += 1
            log.error("not_reloaded", what=self.what, error=reason, kept="as it was before")
        self.fault = reason

    def _hash(self) -> str | None:
        """Of what they say; None where they cannot be read."""
        try:
            return hashlib.sha256(b"".join(map(_content, self._files))).hexdigest()
        except OSError:
            return None

    def _owner(self) -> str:
        """Of the files, links followed."""
        try:
            uids = {file.stat().st_uid for file in self._files}
        except OSError:
            return "file"
        return f"file of uid {', '.join(map(str, sorted(uids)))}"

    def _signature(self) -> Signature:
        return tuple(_stat(file) for file in self._files)


def _content(file: Path) -> bytes:
    with open_regular(file) as opened:
        return opened.read()


def _stat(file: Path) -> tuple[int, ...] | None:
    """Changes with every write and every replacement; None for what is not there."""
    try:
        found = file.stat()
    except OSError:
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

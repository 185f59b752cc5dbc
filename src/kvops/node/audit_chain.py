"""The files of an audit: JSON lines, each with the SHA-256 of the line before, from file to file. Only ever appended
to, by one process; a line that a crash cut short stays where it is, and the next one says so.

A file is named by its first `seq`. What nobody can see in a chain is that its end was cut off: keep the last hash
elsewhere to prove that (`kvops audit verify` prints it). The process that writes sees it: once the file it writes to is
removed, replaced or cut, the chain goes on in a new one, which tells how many records are gone. That its beginning was
removed shows: each file after the first, and each process, tells with which `seq` the chain begins.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from kvops import failpoints
from kvops.node.audit_kept import KEPT, first_seq, let_go, told_first
from kvops.node.rotation import write_whole
from kvops.paths import fsync_folder, make_private

GENESIS = "0" * 64
"""What the first line of all names as the line before it."""
TORN = "torn"
_GONE = "the file was removed, replaced or cut"
_REMOVED = "older files were removed"
_TAIL = 1 << 20
"""No line is longer."""

Record = dict[str, Any]


class Chain:
    """Not for two threads at once."""

    def __init__(self, folder: Path, *, max_bytes: int, keep: int) -> None:
        """`keep`: at most so many files."""
        self._folder, self._max_bytes, self._keep = folder, max_bytes, keep
        self._handle: int | None = None
        self._file, self._end = folder, 0
        """Of the open file: where it has to be, and the least it holds."""
        self._seq, self._prev, self._torn = 1, GENESIS, 0
        self._oldest = 1
        """The first `seq` of the files that are kept."""
        self._harmed = False
        """The open file was found removed, replaced or cut, and no line tells of it yet."""
        self._gone: int | None = None
        """Records that the disk had and has no more."""
        self._begins: int | None = None
        """With which `seq` the chain begins, as it says itself."""
        self._stated = False
        """This process has told so."""

    def append(self, records: Sequence[Record]) -> None:
        """All of them, on the disk, or none. Raises OSError."""
        try:
            handle = self._ready()
            told = self._told()
            lines = [*told, *records]
            data, prev = self._chained(lines)
            end = os.fstat(handle).st_size
            if not self._torn and end and end + len(data) > self._max_bytes:
                handle, end = self._begin_file(), 0
            begins, kept = self._kept(new=not end)
            if kept:
                lines = [*told, *kept, *records]
                data, prev = self._chained(lines)
            _write_durably(handle, data, end)
        except OSError:
            self.close()  # what the disk has is read anew
            raise
        self._seq, self._prev, self._torn = self._seq + len(lines), prev, 0
        self._end, self._harmed, self._gone = end + len(data), False, None
        self._begins, self._stated = begins, True
        if end == 0:  # only now, so that a crash in between removes nothing unsaid
            let_go(files_of(self._folder), self._keep)

    def close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            with contextlib.suppress(OSError):
                os.close(handle)

    def _ready(self) -> int:
        if self._handle is not None:
            if self._is_harmed(self._handle):
                self._harmed = True
                raise OSError(errno.ENOENT, _GONE)
            return self._handle
        make_private(self._folder)
        files = files_of(self._folder)
        self._resume(files)
        goes_on = files and self._gone is None
        return self._open(files[-1]) if goes_on else self._begin_file()

    def _is_harmed(self, handle: int) -> bool:
        ours = os.fstat(handle)
        try:
            there = self._file.stat()
        except FileNotFoundError:
            return True
        return not os.path.samestat(ours, there) or ours.st_size < self._end

    def _resume(self, files: Sequence[Path]) -> None:
        """Where the last line on the disk left off; where this process did, if the disk has less, or something else."""
        seq, prev, torn = _left_off(files)
        self._gone = None
        if seq < self._seq or (self._harmed and (seq, prev) != (self._seq, self._prev)):
            self._gone, self._torn = max(0, self._seq - max(seq, self._oldest)), 0
        else:
            self._seq, self._prev, self._torn = seq, prev, torn

    def _told(self) -> list[Record]:
        """What the next lines have to say of those before."""
        torn = [_stamped({"event": TORN, "bytes": self._torn})] if self._torn else []
        if self._gone is None:
            return torn
        return [_stamped({"event": "lost", "records": self._gone, "why": _GONE})]

    def _kept(self, *, new: bool) -> tuple[int, list[Record]]:
        """With which `seq` the chain begins once the next lines are written, and what they have to say of it."""
        if self._begins is not None and self._stated and not new:
            return self._begins, []
        files = files_of(self._folder)
        begins = self._begins or told_first(files) or self._seq
        if self._seq == 1:
            return begins, []
        told: list[Record] = []
        if self._gone is not None:
            begins = first_seq(files[-self._keep :][0])
        elif len(files) > self._keep:
            missing = first_seq(files[0]) - begins
            if missing > 0:
                told = [_stamped({"event": "lost", "records": missing, "why": _REMOVED})]
            begins = first_seq(files[-self._keep])
        return begins, [*told, _stamped({"event": KEPT, "from": begins})]

    def _chained(self, records: Sequence[Record]) -> tuple[bytes, str]:
        """Their lines, and the hash of the last of them."""
        lines, prev = [], self._prev
        for at, record in enumerate(records):
            lines.append(msgspec.json.encode({"seq": self._seq + at, **record, "prev": prev}))
            prev = digest(lines[-1])
        return (b"\n" if self._torn else b"") + b"\n".join(lines) + b"\n", prev

    def _begin_file(self) -> int:
        self.close()
        handle = self._open(self._folder / f"audit-{self._seq:012d}.jsonl")
        fsync_folder(self._folder)
        return handle

    def _open(self, file: Path) -> int:
        self._handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._file, self._end = file, os.fstat(self._handle).st_size
        if self._gone is None:
            self._oldest = first_seq(files_of(self._folder)[0])
        return self._handle


def files_of(folder: Path) -> list[Path]:
    """Oldest first."""
    return sorted(folder.glob("audit-*.jsonl"))


def digest(line: bytes) -> str:
    """What the next line names: SHA-256 of the bytes without the line end."""
    return hashlib.sha256(line).hexdigest()


def read_record(line: bytes) -> Record | None:
    """None for what is no line of an audit."""
    try:
        record = msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None
    right = isinstance(record.get("seq"), int) and isinstance(record.get("prev"), str)
    return record if right else None


def seq_of(line: bytes) -> int | None:
    record = read_record(line)
    return None if record is None else record["seq"]


def _left_off(files: Sequence[Path]) -> tuple[int, str, int]:
    """The next `seq`, the hash that it names, and the bytes of a line that was cut short."""
    for file in reversed(files):
        data = _tail(file)
        if not data:
            continue  # made, and nothing written
        lines = data.split(b"\n")
        torn = len(lines[-1])
        whole = lines if torn else lines[:-1]
        return 1 + next(filter(None, map(seq_of, reversed(whole))), 0), digest(whole[-1]), torn
    return 1, GENESIS, 0


def _stamped(record: Record) -> Record:
    return {"ts": datetime.now(UTC).isoformat(timespec="milliseconds"), **record}


def _tail(file: Path) -> bytes:
    with file.open("rb") as opened:
        opened.seek(0, os.SEEK_END)
        opened.seek(max(0, opened.tell() - _TAIL))
        return opened.read()


def _write_durably(handle: int, data: bytes, end: int) -> None:
    """What could not be made durable is taken back: the kernel may not say a second time that it is lost."""
    write_whole(handle, data, end)
    try:
        failpoints.reach("audit.fsync.eio")
        os.fsync(handle)
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(handle, end)
        raise

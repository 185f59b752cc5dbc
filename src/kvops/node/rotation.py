"""Files that grow to a bound and are then put aside as NAME.1, NAME.2, …; what is appended is there whole or not at
all, also on a full disk."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


class RotatedFile:
    """0600. Somebody else may empty or remove it at any time."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self._handle: int | None = None

    def append(self, data: bytes) -> bool:
        """True when the file was put aside for it. Raises OSError."""
        handle, size = self._opened()
        full = size > 0 and size + len(data) > self.max_bytes
        if full:
            self._put_aside()
            handle, size = self._opened()
        try:
            write_whole(handle, data, size)
        except OSError:
            self.close()  # what lies in it is looked at anew
            raise
        return full

    def close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            with contextlib.suppress(OSError):
                os.close(handle)

    def _opened(self) -> tuple[int, int]:
        """The open file and its size; a line that was cut short, by a crash or a full disk, is ended first."""
        if self._handle is not None:
            state = os.fstat(self._handle)
            if state.st_nlink:
                return self._handle, state.st_size
            self.close()
        self._handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        size = os.fstat(self._handle).st_size
        if size and os.pread(self._handle, 1, size - 1) != b"\n":
            write_whole(self._handle, b"\n", size)
            size += 1
        return self._handle, size

    def _put_aside(self) -> None:
        self.close()
        for number, file in sorted(aside(self.path), reverse=True):
            file.rename(self.path.with_name(f"{self.path.name}.{number + 1}"))
        self.path.rename(self.path.with_name(f"{self.path.name}.1"))


def aside(path: Path) -> list[tuple[int, Path]]:
    """What was put aside of `path`, with its number; 1 is the youngest."""
    found = path.parent.glob(f"{path.name}.*")
    return [(int(file.suffix[1:]), file) for file in found if file.suffix[1:].isdecimal()]


def write_whole(handle: int, data: bytes, end: int) -> None:
    """Append `data` to a file of `end` bytes, all of it or none. Raises OSError."""
    left = memoryview(data)
    try:
        while left:
            left = left[os.write(handle, left) :]
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(handle, end)
        raise

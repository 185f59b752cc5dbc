"""Server-sent events out of bytes. Lines end with "\\n" alone: other line separators are legal inside JSON."""

from __future__ import annotations

MAX_LINE = 2**20


class LineTooLong(ValueError):
    """A line is longer than MAX_LINE bytes."""


class EventReader:
    """Cuts a stream into the `data` of its events; comments and other fields are skipped."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """The events completed by `chunk`, in order. Raises LineTooLong."""
        # What nearly every read of a stream brings: one whole event of one line.
        if chunk[:6] == b"data: " and chunk[-2:] == b"\n\n" and not (self._rest or self._data):
            whole = chunk[6:-2]
            if b"\n" not in whole and b"\r" not in whole and 0 < len(whole) <= MAX_LINE:
                return [whole]
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > MAX_LINE or any(len(line) > MAX_LINE for line in lines):
            raise LineTooLong(f"a line of the stream is longer than {MAX_LINE} bytes")
        return [
            event for line in lines if (event := self._line(line.removesuffix(b"\r"))) is not None
        ]

    def _line(self, line: bytes) -> bytes | None:
        if not line:
            event, self._data = b"\n".join(self._data), []
            return event or None
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        return None

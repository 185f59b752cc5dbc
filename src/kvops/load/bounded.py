"""Answers whose every read from the socket ends by a deadline that is looked up before it, however bytes drip.

The standard library gives each read of a head or of a chunk's size the whole timeout anew.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
from collections.abc import Callable
from typing import Any

MAX_HEAD = 2**20
"""Bytes before the answer begins, interim answers included."""

Arm = Callable[[], None]
"""Sets the socket's timeout to what is left. Raises TimeoutError when nothing is."""


def answers(connection: http.client.HTTPConnection, arm: Arm) -> None:
    """Have the connection's answers read so. Reading raises ValueError for a head over MAX_HEAD bytes."""

    def answer(sock: socket.socket, **said: Any) -> http.client.HTTPResponse:
        return _Answer(sock, arm, **said)

    connection.response_class = answer  # type: ignore[assignment]


def until(connection: http.client.HTTPConnection, end: float) -> None:
    """No read of the answer goes on beyond `end`, on the clock of perf_counter. The connection stands."""
    sock: socket.socket = connection.sock

    def arm() -> None:
        left = end - time.perf_counter()
        if left <= 0:
            raise TimeoutError("timed out")
        sock.settimeout(left)

    answers(connection, arm)


class _Answer(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, arm: Arm, **said: Any) -> None:
        super().__init__(sock, **said)
        self.fp.close()
        self._reads = _Reads(sock, arm)
        self.fp = io.BufferedReader(self._reads)

    def begin(self) -> None:
        super().begin()
        self._reads.head = None


class _Reads(io.RawIOBase):
    def __init__(self, sock: socket.socket, arm: Arm) -> None:
        self._receive, self._arm = sock.recv_into, arm
        self._open = sock.makefile("rb", buffering=0)
        """Keeps the socket open when its connection is closed before the answer was read."""
        self.head: int | None = 0
        """Bytes of it so far; None once it is over."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._arm()
        size = self._receive(buffer)
        if self.head is not None:
            self.head += size
            if self.head > MAX_HEAD:
                raise ValueError(f"the head of the answer is over {MAX_HEAD} bytes")
        return size

    def close(self) -> None:
        self._open.close()
        super().close()

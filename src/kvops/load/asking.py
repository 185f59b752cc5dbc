"""One request on a connection that stands, and the reading of its answer, every wait and every size bounded."""

from __future__ import annotations

import contextlib
import http.client
import socket
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from kvops.load import bounded
from kvops.load.exchange import Exchange, take_choice, take_error, take_event
from kvops.load.records import ErrorClass
from kvops.load.sse import EventReader
from kvops.load.statuses import status_class
from kvops.units import format_duration

READ_SIZE = 65536
MAX_STREAM = 64 * 2**20
MAX_ANSWER = 8 * 2**20


class Timeouts(msgspec.Struct, frozen=True):
    """Seconds."""

    connect: float = 5.0
    first_token: float = 600.0
    """Until the first token, or a whole answer that is no stream."""
    stall: float = 120.0
    """Between two deltas with tokens; comments of the server do not count."""
    total: float = 900.0


class Leave(msgspec.Struct, frozen=True, kw_only=True):
    """When to drop the connection on purpose, whichever comes first."""

    deltas: int | None = None
    """After so many deltas with tokens."""
    after: float | None = None
    """Seconds after the request was written."""


class Asking:
    """One request on a connection that stands. No read outlives its own bound or the whole request's."""

    def __init__(
        self,
        connection: http.client.HTTPConnection,
        timeouts: Timeouts,
        exchange: Exchange,
        start: float,
        leave: Leave,
    ) -> None:
        self._connection, self._timeouts, self._exchange, self._start, self._leave = (
            connection, timeouts, exchange, start, leave,
        )  # fmt: skip
        self._sock: socket.socket = connection.sock
        bounded.answers(connection, self._arm)

    def run(self, path: str, data: bytes | None, headers: dict[str, str]) -> None:
        try:
            self._arm()
            # A server may refuse a large body and answer before it has read all of it.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._connection.request("GET" if data is None else "POST", path, data, headers)
            self._read(self._connection.getresponse())
        except TimeoutError:
            if self._exchange.error_class is not None:
                return
            self._exchange.left = self._leaves()
            if not self._exchange.left:
                self._exchange.error_class = self._timeout_class()
                self._exchange.message = f"gave up after {format_duration(self._elapsed())}"

    def _leaves(self) -> bool:
        """Whether it is time to drop the connection."""
        enough, after = self._leave.deltas, self._leave.after
        return (enough is not None and len(self._exchange.deltas) >= enough) or (
            after is not None and self._elapsed() >= after
        )

    def _elapsed(self) -> float:
        return time.perf_counter() - self._start

    def _arm(self) -> None:
        """Bound the next read: by the first token, or by the last delta, or by the total, whichever is nearest."""
        deltas, bounds = self._exchange.deltas, self._timeouts
        until = min(bounds.total, deltas[-1] + bounds.stall if deltas else bounds.first_token)
        if self._leave.after is not None:
            until = min(until, self._leave.after)
        left = until - self._elapsed()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)

    def _timeout_class(self) -> ErrorClass:
        if self._elapsed() >= self._timeouts.total:
            return ErrorClass.TOTAL_TIMEOUT
        return ErrorClass.STALL_TIMEOUT if self._exchange.deltas else ErrorClass.FIRST_TOKEN_TIMEOUT

    def _read(self, response: http.client.HTTPResponse) -> None:
        self._exchange.status = response.status
        self._exchange.headers = {name.lower(): value for name, value in response.getheaders()}
        if response.status != 200:
            self._read_refusal(response)
        elif "text/event-stream" in self._exchange.headers.get("content-type", ""):
            self._read_stream(response)
        else:
            self._read_answer(response)

    def _pieces(self, response: http.client.HTTPResponse, most: int) -> Iterator[bytes]:
        """What arrives, as it arrives. Raises ValueError over `most` bytes."""
        size = 0
        while True:
            piece = response.read1(READ_SIZE)
            if not piece:
                return
            size += len(piece)
            if size > most:
                raise ValueError(f"the answer is over {most} bytes")
            yield piece

    def _read_stream(self, response: http.client.HTTPResponse) -> None:
        reader, exchange = EventReader(), self._exchange
        for piece in self._pieces(response, MAX_STREAM):
            at = self._elapsed()
            for event in reader.feed(piece):
                take_event(event, at, exchange)
            exchange.left = not exchange.done and self._leaves()
            if exchange.done or exchange.left:
                return
        if exchange.error_class is None:
            exchange.error_class = ErrorClass.STREAM_TRUNCATED
            exchange.message = "the stream ended without [DONE]"

    def _read_refusal(self, response: http.client.HTTPResponse) -> None:
        """The status has the say: neither a stream nor a good body makes a success of it."""
        status, exchange = response.status, self._exchange
        exchange.error_class, exchange.message = status_class(status), f"HTTP {status}"
        take_error(self._json(response), exchange)
        exchange.error_class = status_class(status, str(exchange.error.get("code", "")))
        exchange.message = exchange.message or f"HTTP {status}"

    def _read_answer(self, response: http.client.HTTPResponse) -> None:
        answer = self._json(response)
        if not isinstance(answer, dict):
            raise ValueError("HTTP 200 with a body that is no JSON object")
        self._exchange.done = True
        if answer.get("error"):
            take_error(answer, self._exchange)
            raise ValueError(f"HTTP 200 with an error: {self._exchange.message}")
        take_choice(answer, self._exchange)  # a plain answer has no first token to time

    def _json(self, response: http.client.HTTPResponse) -> Any:
        """None for a body that is not JSON."""
        try:
            return msgspec.json.decode(b"".join(self._pieces(response, MAX_ANSWER)))
        except (msgspec.DecodeError, RecursionError):
            return None

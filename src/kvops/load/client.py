"""A blocking client for OpenAI-style completions that times every content delta; cooperative under gevent.

One fresh connection a request, timed apart, so that no request waits in a pool; no retries; every size and time
is bounded. The clock of all durations starts when the connection stands and the request is about to be written.
"""

from __future__ import annotations

import contextlib
import copy
import http.client
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from kvops.load.exchange import (
    Exchange,
    classify,
    status_class,
    take_choice,
    take_error,
    take_event,
    without_quotes,
)
from kvops.load.records import ErrorClass
from kvops.load.sse import EventReader
from kvops.units import format_duration

READ_SIZE = 65536
MAX_STREAM = 64 * 2**20
MAX_ANSWER = 8 * 2**20


class Timeouts(msgspec.Struct, frozen=True):
    """Seconds."""

    connect: float = 5.0
    first_token: float = 600.0
    """Until the first content delta, or a whole answer that is no stream."""
    stall: float = 120.0
    """Between two content deltas; comments of the server do not count."""
    total: float = 900.0


class Leave(msgspec.Struct, frozen=True, kw_only=True):
    """When to drop the connection on purpose, whichever comes first."""

    deltas: int | None = None
    """After so many content deltas."""
    after: float | None = None
    """Seconds after the request was written."""


class Answer(msgspec.Struct, frozen=True):
    """A short plain answer."""

    status: int
    body: bytes

    def json(self) -> Any:
        """None for anything that is not JSON."""
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, RecursionError):
            return None


class Client:
    """Speaks to one base URL. Holds no connection, so many greenlets may share it.

    Raises ValueError for a URL that is not http(s).
    """

    def __init__(
        self, url: str, *, api_key: str | None = None, timeouts: Timeouts | None = None
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not an http(s) URL")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._host, self._port = parts.hostname, parts.port
        self._prefix = parts.path.rstrip("/")
        self._auth = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeouts = timeouts or Timeouts()
        self._own: dict[str, str] = {}

    def with_headers(self, headers: Mapping[str, str]) -> Client:
        """One that sends these with every request, in place of the usual ones of their names."""
        other = copy.copy(self)
        other._own = dict(headers)
        return other

    def fetch(self, method: str, path: str, body: Any = None, *, timeout: float = 10.0) -> Answer:
        """A plain request. Raises OSError or http.client.HTTPException, ValueError over MAX_ANSWER bytes."""
        connection = self._connection(timeout)
        try:
            connection.request(
                method,
                self._prefix + path,
                None if body is None else msgspec.json.encode(body),
                self._headers(),
            )
            response = connection.getresponse()
            data = response.read(MAX_ANSWER + 1)
        finally:
            connection.close()
        if len(data) > MAX_ANSWER:
            raise ValueError(f"the answer of {path} is over {MAX_ANSWER} bytes")
        return Answer(response.status, data)

    def complete(
        self,
        path: str,
        body: dict[str, Any] | bytes | None,
        into: Exchange | None = None,
        leave: Leave | None = None,
    ) -> Exchange:
        """POST `body` (bytes go out as they are; None is a GET) and read the stream, or the error, to its end.

        Never raises for what the network or the server does: `error_class` says it. `into` is filled as the
        answer arrives, so that a caller that is stopped half-way still has what came. With `leave` the connection
        is dropped before the end, and `left` says that it was.
        """
        data = body if isinstance(body, bytes | None) else msgspec.json.encode(body)
        exchange = into or Exchange()
        exchange.t_send = time.time()
        start = time.perf_counter()
        connection = self._connection(self._timeouts.connect)
        try:
            connection.connect()
            exchange.connect = time.perf_counter() - start
            exchange.t_send, start = time.time(), time.perf_counter()
            conversation = _Conversation(
                connection, self._timeouts, exchange, start, leave or Leave()
            )
            conversation.run(self._prefix + path, data, self._headers())
        except (OSError, http.client.HTTPException, RecursionError, ValueError) as error:
            classify(exchange, error)
        finally:
            exchange.e2e = time.perf_counter() - start
            exchange.message = without_quotes(exchange.message, data)
            connection.close()
        return exchange

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        if self._tls is not None:
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=timeout, context=self._tls
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout)

    def _headers(self) -> dict[str, str]:
        return (
            {
                "Content-Type": "application/json",
                "Accept": "text/event-stream, application/json",
            }
            | self._auth
            | self._own
        )


class _Conversation:
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

    def run(self, path: str, data: bytes | None, headers: dict[str, str]) -> None:
        try:
            self._arm()
            # A server may refuse a large body and answer before it has read all of it.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._connection.request("GET" if data is None else "POST", path, data, headers)
            self._arm()
            self._read(self._connection.getresponse())
        except TimeoutError:
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
        if "text/event-stream" in self._exchange.headers.get("content-type", ""):
            self._read_stream(response)
        else:
            self._read_answer(response)

    def _pieces(self, response: http.client.HTTPResponse, most: int) -> Iterator[bytes]:
        """What arrives, as it arrives. Raises ValueError over `most` bytes."""
        size = 0
        while True:
            self._arm()
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

    def _read_answer(self, response: http.client.HTTPResponse) -> None:
        data, status, exchange = (
            b"".join(self._pieces(response, MAX_ANSWER)),
            response.status,
            self._exchange,
        )
        try:
            answer = msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError):
            answer = None
        if status >= 400:
            take_error(answer, exchange)
            exchange.error_class = status_class(status, str(exchange.error.get("code", "")))
            exchange.message = exchange.message or f"HTTP {status}"
        elif isinstance(answer, dict):
            exchange.done = True
            take_choice(answer, exchange)  # a plain answer has no first token to time
        else:
            raise ValueError(f"HTTP {status} with a body that is no JSON object")

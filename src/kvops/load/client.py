"""A blocking client for OpenAI-style completions that times every content delta; cooperative under gevent.

One fresh connection a request, timed apart, so that no request waits in a pool; no retries; every size and time
is bounded. The clock of all durations starts when the connection stands and the request is about to be written.
"""

from __future__ import annotations

import copy
import http.client
import ssl
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from kvops.load import bounded, clock
from kvops.load.asking import MAX_ANSWER, Asking, Leave, Timeouts
from kvops.load.exchange import (
    MAX_MESSAGE,
    Exchange,
    classify,
    without_quotes,
    without_secrets,
)
from kvops.printable import printable

__all__ = ["Answer", "Client", "Leave", "Timeouts"]


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
        self._secrets = _secrets(self._auth)

    def with_headers(self, headers: Mapping[str, str]) -> Client:
        """One that sends these with every request, in place of the usual ones of their names."""
        other = copy.copy(self)
        other._own = dict(headers)
        other._secrets = self._secrets | _secrets(other._own)
        return other

    def clean(self, text: str) -> str:
        """Words of the server for a reader or a record: one bounded line, without the credentials that were sent."""
        return printable(without_secrets(text, self._secrets)[:MAX_MESSAGE])

    def fetch(self, method: str, path: str, body: Any = None, *, timeout: float = 10.0) -> Answer:
        """A plain request, over within `timeout` seconds and the time to connect.

        Raises OSError or http.client.HTTPException, ValueError over MAX_ANSWER bytes.
        """
        connection = self._connection(timeout)
        try:
            connection.connect()
            bounded.until(connection, time.perf_counter() + timeout)
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
        exchange.t_send = clock.now()
        start = time.perf_counter()
        connection = self._connection(self._timeouts.connect)
        try:
            connection.connect()
            exchange.connect = time.perf_counter() - start
            exchange.t_send, start = clock.now(), time.perf_counter()
            asking = Asking(connection, self._timeouts, exchange, start, leave or Leave())
            asking.run(self._prefix + path, data, self._headers())
        except (
            Exception
        ) as error:  # whatever a server makes of an answer is that request's failure, no more
            classify(exchange, error)
        finally:
            exchange.e2e = time.perf_counter() - start
            exchange.message = self.clean(without_quotes(exchange.message, data))
            if (
                exchange.finish_reason
                and self.clean(exchange.finish_reason) != exchange.finish_reason
            ):
                exchange.finish_reason = None
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


_CREDENTIALS = ("authorization", "key", "token", "cookie", "secret")
"""A header with one of these in its name carries one."""


def _secrets(headers: Mapping[str, str]) -> frozenset[str]:
    """The credentials among headers that are sent."""
    carrying = [
        value
        for name, value in headers.items()
        if any(word in name.lower() for word in _CREDENTIALS)
    ]
    return frozenset(value.removeprefix("Bearer ").strip() for value in carrying) - {""}

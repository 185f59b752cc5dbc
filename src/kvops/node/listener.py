"""Sockets and HTTP servers of the daemon: bound before anything is loaded, bounded in headers and in time."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import socket
import sys
from collections.abc import Iterator
from urllib.parse import urlsplit

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from kvops import registry
from kvops.errors import InvalidRequest, NodeStartError, RequestError, TooLarge
from kvops.node.api.gate import MAX_HEADER_BYTES, new_request_id

HEADER_SECONDS = 15.0
_LINGER_SECONDS = 10.0


def bind(host: str, port: int, field: str) -> socket.socket:
    """A bound socket that does not listen yet. Raises NodeStartError that names the port and the remedy."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # asyncio turns Nagle's algorithm off only where the protocol is named; else each answer waits 40 ms.
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise _in_use(host, port, field) from None
        raise NodeStartError(
            f"cannot bind {host}:{port}: {error.strerror}", hint=f"check {field}"
        ) from None
    return sock


def _in_use(host: str, port: int, field: str) -> NodeStartError:
    """Names the node that holds the port, where it is one of this machine."""
    beside = "start this one beside it: --port 0 --control-port 0 (0 picks a free one)"
    owner = next(
        (
            record.name
            for record in registry.running()
            if port in (urlsplit(record.url).port, urlsplit(record.control_url).port)
        ),
        None,
    )
    if owner is None:
        return NodeStartError(
            f"port {port} on {host} is in use, asked for as {field}",
            hint=f"stop what listens there, or {beside}",
        )
    return NodeStartError(
        f"port {port} on {host}, asked for as {field}, is that of the kvops node {owner!r}",
        hint=f"kvops node stop --node {owner}, or {beside}",
    )


def url_of(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Listener(uvicorn.Server):
    """A server whose signals are the daemon's and whose socket was bound before."""

    def __init__(self, app: ASGIApp, sock: socket.socket, *, grace: int = 2) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=BoundedProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=grace,
                h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            )
        )
        self._sock = sock

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def run_until_stopped(self) -> None:
        await self.serve(sockets=[self._sock])


class BoundedProtocol(H11Protocol):
    """uvicorn's protocol with a deadline for the request head, and errors in the node's shape."""

    _head_deadline: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """A body still being sent after its answer is read and dropped, but not for ever."""
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:
            self.loop.call_later(_LINGER_SECONDS, self._close_if_unread, self.cycle)

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state is not h11.IDLE and self.conn.our_state is not h11.SEND_RESPONSE:
            self.transport.close()
            return
        problem = sys.exc_info()[1]
        hint = getattr(problem, "error_status_hint", 400)
        error: RequestError = InvalidRequest("the request is not valid HTTP.")
        if hint == 431:
            error = TooLarge(
                f"the request head is over the bound of {MAX_HEADER_BYTES} bytes.", status=431
            )
        self._write_error(error)

    def _write_error(self, error: RequestError) -> None:
        body = json.dumps(error.body()).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
            (b"x-request-id", new_request_id().encode()),
        ]
        with contextlib.suppress(h11.LocalProtocolError):
            status = error.http_status
            head = h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status])
            for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _watch_head(self) -> None:
        """Armed from a connection's or a request's first byte until its head is complete."""
        if self.conn.their_state is not h11.IDLE:
            self._disarm()
        elif self._head_deadline is None:
            self._head_deadline = self.loop.call_later(HEADER_SECONDS, self._head_too_slow)

    def _head_too_slow(self) -> None:
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.close()

    def _disarm(self) -> None:
        if self._head_deadline is not None:
            self._head_deadline.cancel()
            self._head_deadline = None

    def _close_if_unread(self, cycle: object) -> None:
        if self.cycle is cycle and self.conn.their_state is h11.SEND_BODY:
            self.transport.close()

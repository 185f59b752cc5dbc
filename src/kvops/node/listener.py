"""Sockets and HTTP servers of the daemon: bound before anything is loaded, bounded in headers and in time."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import functools
import json
import resource
import socket
import sys
import termios
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import h11
import structlog
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from kvops import registry
from kvops.errors import (
    InvalidRequest,
    NodeError,
    NodeStartError,
    QueueFull,
    RequestError,
    TooLarge,
)
from kvops.node.api.answers import ABORT
from kvops.node.api.gate import MAX_HEADER_BYTES, new_request_id

HEADER_SECONDS = 15.0
SEND_SECONDS = 30.0
BACKLOG = 128
"""Also how many connections are accepted before one of them is looked at."""
_SPARE_DESCRIPTORS = 256
"""For files, the engine, and what is accepted to be refused."""
_LINGER_SECONDS = 10.0

log = structlog.get_logger("kvops.listener")


def bind(host: str, port: int, field: str) -> socket.socket:
    """A socket that listens, so that nothing else can have the port. Raises NodeStartError that names it."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # asyncio turns Nagle's algorithm off only where the protocol is named; else each answer waits 40 ms.
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
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


def connection_bound(wanted: int) -> int:
    """At most so many connections of one listener, by what the system lets the process open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        wanted if soft == resource.RLIM_INFINITY else min(wanted, max(8, soft - _SPARE_DESCRIPTORS))
    )


def url_of(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Listener(uvicorn.Server):
    """A server whose signals are the daemon's and whose socket was bound before."""

    def __init__(
        self, app: ASGIApp, sock: socket.socket, *, connections: int = 1024, grace: int = 2
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=functools.partial(BoundedProtocol, most=connection_bound(connections)),  # type: ignore[arg-type]
                backlog=BACKLOG,
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
        """Raises NodeError when it cannot go on: a node without one of its planes is none."""
        try:
            await self.serve(sockets=[self._sock])
        except OSError as error:
            raise NodeError(f"a listener of the node failed: {error.strerror or error}") from None


class BoundedProtocol(H11Protocol):
    """uvicorn's protocol with a deadline for the request head, and errors in the node's shape."""

    _head_deadline: asyncio.TimerHandle | None = None
    _send_deadline: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, most: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._most = most

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, ABORT: transport.abort}
        transport.set_write_buffer_limits(high=0)  # any byte that the client does not take is seen
        if len(self.connections) > self._most:
            log.warning("connections_full", bound=self._most)
            self._write_error(QueueFull(f"the node holds {self._most} connections, its bound."))
            return
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self.resume_writing()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more. That is how most clients go away, so work for it is not begun or ended; who only
        closed the sending side is told so. What is read without work is still answered."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return False
        if cycle.scope["method"] in ("GET", "HEAD"):
            cycle.keep_alive = False
            return True
        if not cycle.response_started:
            self._write_error(
                InvalidRequest(
                    "the client closed its sending side before the answer, which cancels the request."
                )
            )
        return False

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_sending()

    def resume_writing(self) -> None:
        if self._send_deadline is not None:
            self._send_deadline.cancel()
        super().resume_writing()

    def _watch_sending(self) -> None:
        """Cut a client that takes no byte of its answer, finished or not, for SEND_SECONDS."""
        self._send_deadline = self.loop.call_later(SEND_SECONDS, self._check_sent, self._unsent())

    def _unsent(self) -> int:
        """Bytes that the client has not acknowledged, those in the system's buffer too: it fills up for minutes."""
        queued = bytearray(4)
        with contextlib.suppress(OSError):
            fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, queued)
        return self.transport.get_write_buffer_size() + int.from_bytes(queued, sys.byteorder)

    def _check_sent(self, before: int) -> None:
        if self._unsent() < before:
            self._watch_sending()
        else:
            self.transport.abort()

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
            *((name.lower().encode(), value.encode()) for name, value in error.headers().items()),
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

"""One HTTP connection: deadlines for the request head and for taking the answer, and errors in the node's shape."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import sys
import termios
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from kvops.errors import InvalidRequest, RequestError, TooLarge
from kvops.node.api.answers import ABORT
from kvops.node.api.gate import MAX_HEADER_BYTES, new_request_id
from kvops.node.peers import Holder, Peers

HEADER_SECONDS = 15.0
SEND_SECONDS = 30.0
LINGER_SECONDS = 10.0
"""For a body that is still being sent after its answer."""
LEAVE_SECONDS = 1.0
SPARED_SECONDS = 1.0
"""What a connection has for its next step before it may be closed to make room for another."""
MAX_LEAVING = 64
"""Connections that were turned away and have a moment to read why; more are cut."""


class BoundedProtocol(H11Protocol):
    """uvicorn's protocol with a deadline for the request head, and errors in the node's shape."""

    _head_deadline: asyncio.TimerHandle | None = None
    _send_deadline: asyncio.TimerHandle | None = None
    _turned_away = False
    below_tls: asyncio.Transport | None = None
    """What carries the transport of a connection with TLS."""

    def __init__(self, *args: Any, peers: Peers, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._peers = peers
        self.address = ""
        self._waits_since = 0.0
        """When it was made, or done with its last request."""

    def data_received(self, data: bytes) -> None:
        if self._turned_away:
            return
        super().data_received(data)
        self._watch_head()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._waits_since = self.loop.time()
        self.app_state = {**self.app_state, ABORT: transport.abort}
        # Any byte that the client does not take is seen.
        (self.below_tls or transport).set_write_buffer_limits(high=0)
        try:
            self.check_peer(transport, len(self.connections))
        except RequestError as error:
            self._turn_away(error)
        else:
            self._watch_head()

    def _turn_away(self, error: RequestError) -> None:
        """The answer comes before the request; bytes that stay unread would reset the connection before it is read."""
        self._turned_away = True
        self._tell(error)
        self.connections.discard(self)
        self._write_answer(error)
        if self._peers.leaving >= MAX_LEAVING or not self.transport.can_write_eof():
            self.transport.close()
            return
        self._peers.leaving += 1
        self.loop.call_later(LEAVE_SECONDS, self._gone)
        self.transport.write_eof()

    def _gone(self) -> None:
        self._peers.leaving -= 1
        self.transport.close()

    def check_peer(self, transport: asyncio.Transport, held: int) -> None:
        """Raises Forbidden, QueueFull for a connection that may not be, of `held` ones."""
        self.address = str((transport.get_extra_info("peername") or ("",))[0])
        self._peers.check(self.address, held, cast("set[Holder]", self.connections))

    def spare_for(self) -> float | None:
        """None while it has a request in hand, or but a moment ago it had one or was made."""
        if self.cycle is not None and not self.cycle.response_complete:
            return None
        waited = self.loop.time() - self._waits_since
        if not self._is_idle():
            waited -= SPARED_SECONDS
        return waited if waited >= 0 else None

    def _is_idle(self) -> bool:
        """Between two requests: the last is answered, and taken, and nothing of a next one has come."""
        begun = self.cycle is None or bool(self.conn.trailing_data[0])
        return (
            not begun
            and self.conn.their_state is h11.IDLE
            and not self.transport.get_write_buffer_size()
        )

    def give_way(self) -> None:
        self.connections.discard(self)
        self._disarm()
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

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
            return self.scheme == "http"  # TLS cannot be closed on one side only
        if not cycle.response_started:
            self._write_error(
                InvalidRequest(
                    "the client closed its sending side before the answer, which cancels the request."
                )
            )
        return False

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._send_deadline is None:
            self._watch_sending()

    def resume_writing(self) -> None:
        if self._send_deadline is not None:
            self._send_deadline.cancel()
            self._send_deadline = None
        super().resume_writing()

    def _watch_sending(self) -> None:
        """Cut a client that takes no byte of its answer, finished or not, for SEND_SECONDS."""
        self._send_deadline = self.loop.call_later(SEND_SECONDS, self._check_sent, self._unsent())

    def _unsent(self) -> int:
        """Bytes that the client has not acknowledged, those in the system's buffer too: it fills up for minutes."""
        queued = bytearray(4)
        with contextlib.suppress(OSError):
            fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, queued)
        held = [self.transport, self.below_tls]
        size = sum(each.get_write_buffer_size() for each in held if each is not None)
        return size + int.from_bytes(queued, sys.byteorder)

    def _check_sent(self, before: int) -> None:
        if self._unsent() < before:
            self._watch_sending()
        else:
            self.transport.abort()

    def on_response_complete(self) -> None:
        """A body still being sent after its answer is read and dropped, but not for ever."""
        self._waits_since = self.loop.time()
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:
            self.loop.call_later(LINGER_SECONDS, self._close_if_unread, self.cycle)
        elif self.conn.trailing_data[0]:  # of a next request, sent before this answer was there
            self._watch_head()

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
        self._tell(error)
        self._write_error(error)

    def _tell(self, error: RequestError) -> None:
        self._peers.on_refused(error.code, self.client[0] if self.client else "")

    def _write_error(self, error: RequestError) -> None:
        self._write_answer(error)
        self.transport.close()

    def _write_answer(self, error: RequestError) -> None:
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

"""Between a client and a sound HTTP application: faults that change what goes in and what comes out.

The application may be a node's own or a proxy to one. Streams are passed on event by event, other answers whole.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

Headers = list[tuple[bytes, bytes]]
INFERENCE = ("/v1/completions", "/v1/chat/completions")


@dataclass
class Call:
    """A request on its way in. `memory` is for the faults that see it twice."""

    method: str
    path: str
    headers: Headers
    body: bytes
    memory: dict[str, Any] = field(default_factory=dict)

    @property
    def json(self) -> dict[str, Any]:
        """Empty for a body that is no JSON object."""
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def infers(self) -> bool:
        return self.method == "POST" and self.path in INFERENCE

    def send(self, body: dict[str, Any]) -> None:
        """This in place of the client's own body."""
        self.body = msgspec.json.encode(body)

    def with_header(self, name: bytes, value: bytes | None) -> None:
        """None takes it away."""
        self.headers = [pair for pair in self.headers if pair[0] != name]
        if value is not None:
            self.headers.append((name, value))


@dataclass
class Reply:
    """A whole answer on its way out, or, without its body, the head of a stream."""

    status: int
    headers: Headers
    body: bytes = b""

    @property
    def json(self) -> dict[str, Any]:
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def code(self) -> str | None:
        error = self.json.get("error")
        return error.get("code") if isinstance(error, dict) else None

    @property
    def streams(self) -> bool:
        return dict(self.headers).get(b"content-type", b"").startswith(b"text/event-stream")

    def tell(self, body: dict[str, Any]) -> None:
        self.body = msgspec.json.encode(body)

    @classmethod
    def of(cls, status: int, body: dict[str, Any]) -> Reply:
        return cls(status, [(b"content-type", b"application/json")], msgspec.json.encode(body))


class Fault:
    """Changes nothing unless a subclass does."""

    async def enter(self, call: Call) -> Reply | None:
        """Before the application is asked; a reply is given in its place."""
        return None

    def early(self, call: Call) -> str | None:
        """The first event of a stream that begins before the application is asked."""
        return None

    async def leave(self, call: Call, reply: Reply) -> bool:
        """A whole answer; True: ask again, with what `call` is now."""
        return False

    def head(self, call: Call, reply: Reply) -> None:
        """The head of a stream."""

    def event(self, call: Call, data: str) -> Iterable[str]:
        """What goes out for one event of a stream."""
        return (data,)

    def tail(self, call: Call) -> AsyncIterator[str] | None:
        """More events after the last one."""
        return None


class Between:
    def __init__(self, app: ASGIApp, faults: Sequence[Fault]) -> None:
        self._app = app
        self._faults = faults

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = await _read(receive)
        call = Call(scope["method"], scope["path"], list(scope["headers"]), body)
        for fault in self._faults:
            if (reply := await fault.enter(call)) is not None:
                await _send_whole(send, reply)
                return
        early = [data for fault in self._faults if (data := fault.early(call)) is not None]
        again = True
        while again:
            passage = _Passage(self._faults, call, send)
            if early:
                await passage.begin(early)
            await self._app(_scope_of(scope, call), _once(call.body, receive), passage)
            again = passage.again


class _Passage:
    """One answer of the application on its way to the client."""

    def __init__(self, faults: Sequence[Fault], call: Call, send: Send) -> None:
        self._faults, self._call, self._send = faults, call, send
        self._reply = Reply(500, [])
        self._rest = b""
        self._begun = False
        self.again = False

    async def begin(self, events: Sequence[str]) -> None:
        """A stream, before the application has said a word."""
        self._begun = True
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        for data in events:
            await self._put(_sse(data))

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            await self._start(message)
        elif self._reply.streams:
            await self._stream(message)
        else:
            await self._whole(message)

    async def _start(self, message: Message) -> None:
        headers = [(name.lower(), value) for name, value in message.get("headers", [])]
        self._reply = Reply(message["status"], headers)
        if self._reply.streams and not self._begun:
            for fault in self._faults:
                fault.head(self._call, self._reply)
            await self._send({**message, "headers": self._reply.headers})

    async def _whole(self, message: Message) -> None:
        self._reply.body += message.get("body", b"")
        if message.get("more_body"):
            return
        asks_again = [await fault.leave(self._call, self._reply) for fault in self._faults]
        self.again = any(asks_again)
        if self._begun:
            self.again = False
            await self._put(_sse(self._reply.body.decode()))
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        elif not self.again:
            await _send_whole(self._send, self._reply)

    async def _stream(self, message: Message) -> None:
        *events, self._rest = (self._rest + message.get("body", b"")).split(b"\n\n")
        for event in events:
            await self._pass_on(event)
        if not message.get("more_body"):
            for fault in self._faults:
                if (tail := fault.tail(self._call)) is not None:
                    async for data in tail:
                        await self._put(_sse(data))
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pass_on(self, event: bytes) -> None:
        if not event.startswith(b"data: "):
            await self._put(event + b"\n\n")
            return
        news = [event.removeprefix(b"data: ").decode()]
        for fault in self._faults:
            news = [out for data in news for out in fault.event(self._call, data)]
        for data in news:
            await self._put(_sse(data))

    async def _put(self, body: bytes) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": True})


def _sse(data: str) -> bytes:
    return f"data: {data}\n\n".encode()


async def _read(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


def _once(body: bytes, receive: Receive) -> Receive:
    """The body, and then what else the client does."""
    given = False

    async def read() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return read


def _scope_of(scope: Scope, call: Call) -> Scope:
    length = str(len(call.body)).encode()
    headers = [
        (name, length if name == b"content-length" else value) for name, value in call.headers
    ]
    path, state = call.path.encode(), dict(scope.get("state", {}))
    return {**scope, "path": call.path, "raw_path": path, "headers": headers, "state": state}


async def _send_whole(send: Send, reply: Reply) -> None:
    headers = [pair for pair in reply.headers if pair[0] != b"content-length"]
    headers.append((b"content-length", str(len(reply.body)).encode()))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body, "more_body": False})

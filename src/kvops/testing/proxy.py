"""A proxy before any node, with those defects that can be made from outside. Streams pass through as they come."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import httpx
import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from kvops.node.api.answers import unless_disconnected
from kvops.testing.between import Between
from kvops.testing.defects import check_names
from kvops.testing.wiring import OUTSIDE, outside_faults

TIMEOUT = httpx.Timeout(600.0, connect=5.0)
_HOP = {b"host", b"connection", b"keep-alive", b"transfer-encoding", b"content-length", b"te", b"upgrade"}  # fmt: skip
"""Of one connection, not of what is said over it (RFC 9110 §7.6.1)."""
_START_SECONDS = 10.0


class Forward:
    """Passes each request on to `upstream` and its answer back."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream.rstrip("/")
        self._http: httpx.AsyncClient | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if self._http is None:  # in the loop that serves
            limits = httpx.Limits(max_connections=None)
            self._http = httpx.AsyncClient(timeout=TIMEOUT, trust_env=False, limits=limits)
        message = await receive()
        request = self._http.build_request(
            scope["method"],
            self._upstream + scope["path"],
            params=scope["query_string"].decode(),
            headers=[pair for pair in scope["headers"] if pair[0].lower() not in _HOP],
            content=message.get("body", b""),
        )
        asking = self._http.send(request, stream=True)
        try:
            answer = await unless_disconnected(Request(scope, receive), asking)
        except ClientDisconnect:
            return
        except httpx.TransportError as error:
            await _unreachable(error)(scope, receive, send)
            return
        headers = [pair for pair in answer.headers.raw if pair[0].lower() not in _HOP]
        reply = StreamingResponse(_passed(answer), answer.status_code)
        reply.raw_headers = [(name.lower(), value) for name, value in headers]
        await reply(scope, receive, send)


async def _passed(answer: httpx.Response) -> AsyncIterator[bytes]:
    """Closed when the client hangs up, so that the node sees it too."""
    try:
        async for chunk in answer.aiter_raw():
            yield chunk
    finally:
        await answer.aclose()


def _unreachable(error: httpx.TransportError) -> JSONResponse:
    what = {"message": f"no answer from the node: {type(error).__name__}", "code": "unreachable"}
    return JSONResponse({"error": what | {"type": "server_error", "param": None}}, 502)


class FaultyProxy:
    """The ASGI application. Raises UsageError for what is no defect that can be made from outside."""

    def __init__(self, upstream: str, *defects: str) -> None:
        faults = outside_faults(check_names(defects, OUTSIDE))
        self.app: ASGIApp = Between(Forward(upstream), faults)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


@contextmanager
def proxy(upstream: str, *defects: str, port: int = 0) -> Iterator[str]:
    """Its URL, on loopback, until the block is left."""
    app = FaultyProxy(upstream, *defects)
    config = uvicorn.Config(
        app, port=port, log_level="critical", timeout_graceful_shutdown=0, lifespan="off"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    _wait_started(server)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(_START_SECONDS)


def _wait_started(server: uvicorn.Server) -> None:
    until = time.monotonic() + _START_SECONDS
    while not server.started:
        if time.monotonic() > until:
            raise RuntimeError("the proxy did not come up: is its port free?")
        time.sleep(0.01)

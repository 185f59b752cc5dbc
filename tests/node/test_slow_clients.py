"""Clients that do not take their answer, on real sockets: none holds a request or a connection for ever."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from kvops.node import protocol
from kvops.node.api import answers
from kvops.node.listener import Listener, bind
from tests.node.test_answers import Bench

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def until(condition: Callable[[], bool], what: str) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - the conditions are not all events
            await asyncio.sleep(0.01)
    assert condition(), what


@contextlib.asynccontextmanager
async def served(app: ASGIApp) -> AsyncIterator[tuple[Listener, socket.socket]]:
    """A listener, and a client that has sent its request and reads nothing."""
    bound = bind("127.0.0.1", 0, "port")
    server = Listener(app, bound)
    running = asyncio.create_task(server.run_until_stopped())
    await until(lambda: server.started, "listening")
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, bound.getsockname())
    await loop.sock_sendall(client, REQUEST)
    try:
        yield server, client
    finally:
        client.close()
        server.should_exit = True
        await running


async def test_the_deadline_of_a_request_covers_the_sending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "LAST_WORD_SECONDS", 0.05)
    bench = Bench(tmp_path, monkeypatch, request_timeout=1)

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 65536
            await asyncio.sleep(0)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answers._EventStream(endless(), bench.admit("r"), {})(scope, receive, send)

    async with served(app) as (server, _):
        await until(lambda: bench.admission.in_flight == 1, "admitted")
        await until(lambda: bench.admission.idle.is_set(), "given up")
        assert bench.meter.outcomes["timeout"] == 1
        await until(lambda: not server.server_state.connections, "cut")


async def test_a_finished_answer_that_nobody_takes_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "SEND_SECONDS", 0.1)
    done = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * 2**25})
        done.set()

    async with served(app) as (server, _):
        await until(done.is_set, "answered")
        await until(lambda: not server.server_state.connections, "cut")


async def test_a_slow_reader_keeps_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "SEND_SECONDS", 0.5)
    size = 3 * 2**20

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * size})

    async with served(app) as (_, client):
        loop, got = asyncio.get_running_loop(), 0
        async with asyncio.timeout(30):
            while got < size:
                data = await loop.sock_recv(client, 2**17)
                assert data, f"cut after {got} bytes"
                got += len(data)
                await asyncio.sleep(0.002)

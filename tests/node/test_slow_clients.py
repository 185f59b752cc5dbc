"""Clients that do not take their answer, on real sockets: none holds a request or a connection for ever."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from kvops.node import listener, protocol
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


async def plain(scope: Scope, receive: Receive, send: Send) -> None:
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
    )
    await send({"type": "http.response.body", "body": b"ok"})


@contextlib.asynccontextmanager
async def line_to(
    app: ASGIApp = plain,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to a listener of its own."""
    bound = bind("127.0.0.1", 0, "port")
    server = Listener(app, bound)
    running = asyncio.create_task(server.run_until_stopped())
    reader, writer = await asyncio.open_connection(*bound.getsockname())
    try:
        yield reader, writer
    finally:
        writer.close()
        server.should_exit = True
        await running


async def answer(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(30):
        head = await reader.readuntil(b"\r\n\r\n")
        return head + await reader.readexactly(2)


async def drip(writer: asyncio.StreamWriter, text: bytes, pause: float) -> bool:
    """One byte after the other; False when the other side closed on the way."""
    with contextlib.suppress(ConnectionError):
        for at in range(len(text)):
            if writer.transport.is_closing():
                return False
            writer.write(text[at : at + 1])
            await asyncio.sleep(pause)
        return not writer.transport.is_closing()
    return False


async def closed(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(30):
        with contextlib.suppress(ConnectionError):
            return await reader.read() == b""
    return True


async def test_a_head_has_a_deadline_however_steadily_it_drips(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protocol, "HEADER_SECONDS", 0.5)
    endless = REQUEST.replace(b"\r\n\r\n", b"\r\nX-Pad: " + b"x" * 4000 + b"\r\n\r\n")
    async with line_to() as (reader, writer):
        assert not await drip(writer, endless, 0.01), "40 s of dripping were let through"
        assert await closed(reader)


async def test_a_head_that_drips_in_within_its_deadline_is_answered() -> None:
    async with line_to() as (reader, writer):
        assert await drip(writer, REQUEST, 0.005)
        assert (await answer(reader)).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("together", [False, True])
async def test_the_next_head_on_a_connection_has_its_deadline_too(
    monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    monkeypatch.setattr(protocol, "HEADER_SECONDS", 0.5)
    half = REQUEST[:20]
    async with line_to() as (reader, writer):
        writer.write(REQUEST + half if together else REQUEST)
        assert (await answer(reader)).startswith(b"HTTP/1.1 200")
        if not together:
            writer.write(half)
        assert await closed(reader)


async def test_an_idle_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "IDLE_SECONDS", 1)
    async with line_to() as (reader, writer):
        for _ in range(3):
            writer.write(REQUEST)
            assert (await answer(reader)).startswith(b"HTTP/1.1 200")
        assert await closed(reader)


async def test_a_body_that_goes_on_after_its_answer_is_not_read_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protocol, "LINGER_SECONDS", 0.3)
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4000\r\n\r\n"
    async with line_to() as (reader, writer):
        writer.write(head)
        assert (await answer(reader)).startswith(b"HTTP/1.1 200")
        assert not await drip(writer, b"x" * 4000, 0.01)


async def test_a_body_that_ends_soon_after_its_answer_costs_no_connection() -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n"
    async with line_to() as (reader, writer):
        writer.write(head)
        assert (await answer(reader)).startswith(b"HTTP/1.1 200")
        assert await drip(writer, b"x" * 10, 0.005)
        writer.write(REQUEST)
        assert (await answer(reader)).startswith(b"HTTP/1.1 200")

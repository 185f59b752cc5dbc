"""A listener that is full makes room: who keeps connections without using them shuts nobody out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from kvops.node.listener import Listener, bind
from kvops.node.protocol import SPARED_SECONDS
from kvops.node.tls import Certificate
from tests.node.test_tls import install

BOUND = 4
GET = b"GET /%s HTTP/1.1\r\nhost: n\r\n\r\n"
Talk = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Room:
    """A listener for BOUND connections, and clients of it from addresses of this machine."""

    def __init__(self, certificate: Certificate | None = None) -> None:
        self.go_on = asyncio.Event()
        sock = bind("127.0.0.1", 0, "server.port")
        self.address = sock.getsockname()
        routes = [Route("/slow", self._slow), Route("/{any}", self._quick)]
        self.listener = Listener(
            Starlette(routes=routes), sock, connections=BOUND, certificate=certificate
        )
        self.opened: list[asyncio.StreamWriter] = []

    async def _slow(self, _: Request) -> PlainTextResponse:
        await self.go_on.wait()
        return PlainTextResponse("slow")

    async def _quick(self, _: Request) -> PlainTextResponse:
        return PlainTextResponse("quick")

    async def connect(self, sent: bytes = b"", *, source: str = "127.0.0.1") -> Talk:
        reader, writer = await asyncio.open_connection(*self.address, local_addr=(source, 0))
        self.opened.append(writer)
        writer.write(sent)
        return reader, writer

    async def served(self, *, source: str = "127.0.0.1") -> Talk:
        """A connection that had its answer and is kept."""
        talk = await self.connect(GET % b"quick", source=source)
        assert await answer(talk) == "HTTP/1.1 200 OK"
        return talk

    async def status(self) -> str:
        """What one more gets."""
        return await answer(await self.connect(GET % b"livez"))


async def answer(talk: Talk) -> str:
    async with asyncio.timeout(20):
        head = (await talk[0].readuntil(b"\r\n\r\n")).decode()
        length = next(
            line for line in head.lower().split("\r\n") if line.startswith("content-length")
        )
        await talk[0].readexactly(int(length.partition(":")[2]))
    return head.partition("\r\n")[0]


async def is_closed(talk: Talk) -> bool:
    with contextlib.suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(0.3):
            return await talk[0].read(1) == b""
    return False


@contextlib.asynccontextmanager
async def running(room: Room) -> AsyncIterator[Room]:
    serving = asyncio.create_task(room.listener.run_until_stopped())
    try:
        yield room
    finally:
        room.go_on.set()
        for writer in room.opened:
            writer.close()
        room.listener.should_exit = True
        await serving


async def test_the_one_that_has_been_idle_for_longest_gives_way() -> None:
    async with running(Room()) as room:
        kept = [await room.served() for _ in range(BOUND)]
        assert await room.status() == "HTTP/1.1 200 OK"
        assert [await is_closed(each) for each in kept] == [True, False, False, False]


async def test_any_number_of_idle_ones_shuts_nobody_out() -> None:
    async with running(Room()) as room:
        for _ in range(10 * BOUND):
            await room.served()
        assert await room.status() == "HTTP/1.1 200 OK"


async def test_whose_address_holds_most_gives_way_first() -> None:
    async with running(Room()) as room:
        oldest = await room.served(source="127.0.0.9")
        crowd = [await room.served() for _ in range(BOUND - 1)]
        assert await room.status() == "HTTP/1.1 200 OK"
        assert not await is_closed(oldest)
        assert await is_closed(crowd[0])


async def test_requests_in_hand_do_not_give_way() -> None:
    async with running(Room()) as room:
        busy = [await room.connect(GET % b"slow") for _ in range(BOUND)]
        await asyncio.sleep(SPARED_SECONDS + 0.2)
        assert await room.status() == "HTTP/1.1 429 Too Many Requests"
        room.go_on.set()
        assert [await answer(each) for each in busy] == ["HTTP/1.1 200 OK"] * BOUND


@pytest.mark.parametrize(
    "sent", [b"", b"GET /quick HTT", b"POST /quick HTTP/1.1\r\nhost: n\r\ncontent-le"]
)
async def test_those_that_send_no_request_have_a_moment_and_then_give_way(sent: bytes) -> None:
    async with running(Room()) as room:
        await_all = [await room.connect(sent) for _ in range(BOUND)]
        assert await room.status() == "HTTP/1.1 429 Too Many Requests"
        await asyncio.sleep(SPARED_SECONDS + 0.2)
        assert await room.status() == "HTTP/1.1 200 OK"
        assert await is_closed(await_all[0])


async def test_bodies_that_never_end_after_their_answer_give_way() -> None:
    async with running(Room()) as room:
        body = b"POST /quick HTTP/1.1\r\nhost: n\r\ncontent-length: 100\r\n\r\nx"
        for _ in range(BOUND):
            assert await answer(await room.connect(body)) == "HTTP/1.1 405 Method Not Allowed"
        await asyncio.sleep(SPARED_SECONDS + 0.2)
        assert await room.status() == "HTTP/1.1 200 OK"


async def test_handshakes_that_do_not_come_give_way(tmp_path: Path) -> None:
    async with running(Room(Certificate(*install("first", tmp_path)))) as room:
        held = [await room.connect() for _ in range(BOUND)]
        await asyncio.sleep(SPARED_SECONDS + 0.2)
        (reader, _) = await room.connect()
        assert not await is_closed((reader, held[0][1])), "the new one is let in"
        assert await is_closed(held[0])

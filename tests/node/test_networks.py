"""Who may connect is decided by the address of the socket: listed networks only, whatever a header says."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import httpx
import pytest
from pydantic import ValidationError
from starlette.responses import PlainTextResponse

from kvops.config.schema import Server
from kvops.errors import Forbidden, QueueFull
from kvops.node.listener import Listener, bind, url_of
from kvops.node.peers import Peers


def peers(*networks: str) -> Peers:
    return Peers(10, Server(allow_networks=networks).allow_networks)


@pytest.mark.parametrize(
    ("networks", "address", "welcome"),
    [
        ((), "203.0.113.9", True),
        ((), "", True),
        (("10.0.0.0/8",), "10.255.255.255", True),
        (("10.0.0.0/8",), "11.0.0.0", False),
        (("10.0.0.0/8",), "9.255.255.255", False),
        (("10.0.0.0/8",), "127.0.0.1", False),
        (("10.0.0.0/8", "127.0.0.1"), "127.0.0.1", True),
        (("127.0.0.1",), "127.0.0.2", False),
        (("10.0.0.0/8",), "::ffff:10.1.2.3", True),
        (("10.0.0.0/8",), "::ffff:11.1.2.3", False),
        (("10.0.0.0/8",), "::1", False),
        (("fd00::/8",), "fdff::1", True),
        (("fd00::/8",), "fe80::1", False),
        (("fe80::/10",), "fe80::1%eth0", True),
        (("0.0.0.0/0",), "::1", False),
        (("::/0",), "::ffff:10.1.2.3", False),
        (("10.0.0.0/8",), "", False),
        (("10.0.0.0/8",), "unix", False),
    ],
)
def test_an_address_and_the_networks(
    networks: tuple[str, ...], address: str, welcome: bool
) -> None:
    some = peers(*networks)
    if welcome:
        some.check(address, 1)
    else:
        with pytest.raises(Forbidden, match="not accepted"):
            some.check(address, 1)
    assert some.refused["network"] == (not welcome)


def test_a_stranger_is_told_of_networks_and_not_of_room() -> None:
    some = peers("10.0.0.0/8")
    with pytest.raises(Forbidden):
        some.check("11.0.0.1", 11)
    with pytest.raises(QueueFull):
        some.check("10.0.0.1", 11)
    assert some.refused == {"network": 1, "full": 1}


@pytest.mark.parametrize("wrong", ["10.0.0.1/8", "10.0.0.0/33", "localhost", "", "10.*", None])
def test_what_is_no_network_is_refused(wrong: object) -> None:
    with pytest.raises(ValidationError):
        Server(allow_networks=(wrong,))


@contextlib.asynccontextmanager
async def listening(*networks: str) -> AsyncIterator[tuple[str, Listener]]:
    sock = bind("127.0.0.1", 0, "server.port")
    allowed = Server(allow_networks=networks).allow_networks
    listener = Listener(PlainTextResponse("ok"), sock, networks=allowed)
    serving = asyncio.create_task(listener.run_until_stopped())
    try:
        yield url_of(sock), listener
    finally:
        listener.should_exit = True
        await serving


async def test_strangers_get_a_403_whatever_they_claim() -> None:
    claims = {"X-Forwarded-For": "10.1.1.1", "X-Real-IP": "10.1.1.1", "Forwarded": "for=10.1.1.1"}
    async with listening("10.0.0.0/8") as (url, listener):
        port = int(url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = "".join(f"{name}: {value}\r\n" for name, value in claims.items())
        writer.write(f"GET /livez HTTP/1.1\r\nHost: x\r\n{head}\r\n".encode())
        answer = await asyncio.wait_for(reader.read(), 30)
        writer.close()
        assert answer.startswith(b"HTTP/1.1 403")
        error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
        assert error["code"] == "forbidden"
        assert "127.0.0.1" in error["message"]
        assert "allow_networks" in error["message"]
        assert listener.peers.refused["network"] == 1


async def test_who_is_listed_is_served_whatever_a_header_says() -> None:
    async with listening("127.0.0.0/8") as (url, _), httpx.AsyncClient(trust_env=False) as client:
        answer = await client.get(url, headers={"X-Forwarded-For": "203.0.113.9"})
        assert answer.text == "ok"

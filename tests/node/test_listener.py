"""Ports are held from the start, a dead listener ends its node, and connections are bounded."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import socket
from pathlib import Path

import httpx
import pytest
from starlette.responses import PlainTextResponse

from kvops.errors import NodeError, NodeStartError
from kvops.node.listener import Listener, bind, connection_bound, url_of
from tests.harness import run_kvops


def test_a_port_that_is_bound_is_taken() -> None:
    with bind("127.0.0.1", 0, "server.port") as first:
        port = first.getsockname()[1]
        with pytest.raises(NodeStartError, match=f"{port}.*control_port"):
            bind("127.0.0.1", port, "server.control_port (--control-port)")


def test_both_planes_on_one_port_is_an_error(tiny_model: Path, kvops_home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    result = run_kvops(
        "node", "start", "--model", str(tiny_model), "--port", port, "--control-port", port,
        env={"KVOPS_HOME": str(kvops_home)}, timeout=60,
    )  # fmt: skip
    assert result.returncode in (1, 2)
    assert port in result.stderr
    assert "control" in result.stderr


async def test_a_listener_that_cannot_go_on_says_so() -> None:
    sock = bind("127.0.0.1", 0, "server.port")
    sock.close()
    with pytest.raises(NodeError, match="listener"):
        await Listener(PlainTextResponse("ok"), sock).run_until_stopped()


async def test_connections_over_the_bound_are_told_and_closed() -> None:
    sock = bind("127.0.0.1", 0, "server.port")
    listener = Listener(PlainTextResponse("ok"), sock, connections=3)
    serving = asyncio.create_task(listener.run_until_stopped())
    host, port = sock.getsockname()
    held = [await asyncio.open_connection(host, port) for _ in range(3)]
    reader, writer = await asyncio.open_connection(host, port)
    head, _, body = (await asyncio.wait_for(reader.read(), 10)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 429")
    assert b"retry-after" in head
    assert "3 connections" in json.loads(body)["error"]["message"]
    for _, other in [*held, (reader, writer)]:
        other.close()
    for _ in range(500):
        if await _answers(url_of(sock)):
            break
        await asyncio.sleep(0.01)
    else:
        pytest.fail("connections that were closed still count")
    listener.should_exit = True
    await serving


async def _answers(url: str) -> bool:
    async with httpx.AsyncClient(trust_env=False) as client:
        with contextlib.suppress(httpx.TransportError):
            return (await client.get(url)).status_code == 200
    return False


def test_the_bound_leaves_descriptors_for_the_rest() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert connection_bound(10**9) < soft
    assert connection_bound(10) == 10

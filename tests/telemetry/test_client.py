"""The client against a real loopback server that behaves well, badly and not at all."""

from __future__ import annotations

import asyncio

import pytest

from kvops.errors import NodeProtocolError, NodeUnauthorized, NodeUnreachable, UsageError
from kvops.telemetry.clients import kvops as client_module
from kvops.telemetry.clients.base import NodeClient
from kvops.telemetry.clients.kvops import KvopsClient
from kvops.telemetry.snapshot import Known, NotExposed, encode
from kvops.telemetry.targets import Target
from tests.telemetry.samples import Answer, healthy, loopback, make_snapshot, reply


def answering(data: bytes) -> Answer:
    async def answer(method: str, path: str, headers: dict[str, str]) -> bytes:
        return data

    return answer


async def snapshot_error(answer: Answer, seconds: float = 5.0) -> Exception:
    async with loopback(answer) as target:
        client = KvopsClient(target, timeout=seconds)
        try:
            with pytest.raises((NodeProtocolError, NodeUnauthorized, NodeUnreachable)) as caught:
                await client.snapshot()
        finally:
            await client.aclose()
    return caught.value


async def test_reads_snapshot_map_and_acts() -> None:
    async with loopback(healthy) as target:
        client: NodeClient = KvopsClient(target)
        assert await client.snapshot() == make_snapshot()
        kv_map = await client.kv_map(123)
        assert isinstance(kv_map, Known)
        assert len(kv_map.value.cells) == 123
        await client.drain()
        await client.resume()
        assert await client.cancel("cmpl-1") is True
        assert await client.cancel("other") is False
        await client.aclose()


async def test_sends_the_right_calls() -> None:
    calls: list[tuple[str, str]] = []

    async def note(method: str, path: str, headers: dict[str, str]) -> bytes:
        calls.append((method, path))
        return await healthy(method, path, headers)

    async with loopback(note) as target:
        client = KvopsClient(target)
        await client.drain()
        await client.resume()
        await client.aclose()
    assert calls == [("POST", "/control/drain"), ("POST", "/control/resume")]


async def test_wrong_token_is_unauthorized_and_names_the_remedy() -> None:
    async with loopback(healthy) as target:
        client = KvopsClient(
            Target(name="x", url=target.url, control_url=target.control_url, token="wrong")
        )
        with pytest.raises(NodeUnauthorized) as caught:
            await client.snapshot()
        await client.aclose()
    assert "--token-file" in caught.value.hint
    assert "wrong" not in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        b"garbage that is no HTTP\r\n\r\n",
        reply(b"not json"),
        reply(b"{}"),
        reply(b"[" * 100_000),
        reply(b'{"schema_version":1}'),
        reply(b'{"schema_version":99}'),
        reply(b"no", "500 Internal Server Error"),
        reply(b'{"error":{"message":"\x1b[31mbad\\nnews"}}', "404 Not Found"),
        reply(b"", "302 Found"),
    ],
    ids=[
        "no-http",
        "no-json",
        "empty",
        "nested",
        "partial",
        "other-version",
        "500",
        "404",
        "redirect",
    ],
)
async def test_anything_else_is_a_protocol_error_on_one_line(data: bytes) -> None:
    error = await snapshot_error(answering(data))
    assert isinstance(error, NodeProtocolError)
    assert error.hint
    assert error.message.isprintable()
    assert len(error.message) < 400


async def test_a_huge_reply_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MAX_REPLY", 10_000)
    error = await snapshot_error(answering(reply(encode(make_snapshot()) + b" " * 20_000)))
    assert isinstance(error, NodeProtocolError)
    assert "10000 bytes" in error.message


async def test_an_encoded_reply_is_not_unpacked() -> None:
    body = reply(b"\x1f\x8b" + b"\0" * 100).replace(
        b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n", 1
    )
    assert isinstance(await snapshot_error(answering(body)), NodeProtocolError)


async def test_a_hung_node_is_unreachable_within_the_timeout() -> None:
    hung = asyncio.Event()

    async def hang(method: str, path: str, headers: dict[str, str]) -> bytes:
        await hung.wait()
        return b""

    error = await snapshot_error(hang, seconds=0.2)
    hung.set()
    assert isinstance(error, NodeUnreachable)
    assert "0.2 s" in error.message


async def test_a_dripping_reply_is_bounded_as_a_whole() -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
        try:
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.02)
        except ConnectionError:
            pass

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    client = KvopsClient(Target(name="x", url=url, control_url=url), timeout=0.3)
    with pytest.raises(NodeUnreachable):
        await client.snapshot()
    await client.aclose()
    server.close()


async def test_nothing_there_says_why() -> None:
    client = KvopsClient(
        Target(name="x", url="http://127.0.0.1:1", control_url="http://127.0.0.1:1")
    )
    with pytest.raises(NodeUnreachable, match="Connection refused"):
        await client.snapshot()
    await client.aclose()


def test_without_a_control_plane_it_says_what_to_add() -> None:
    with pytest.raises(UsageError) as caught:
        KvopsClient(Target(name="x", url="http://127.0.0.1:1"))
    assert "--control-url" in caught.value.hint


async def test_a_map_that_cannot_be_had_is_not_exposed() -> None:
    body = b'{"error":{"message":"the engine is restarting","code":"not_ready"}}'
    async with loopback(answering(reply(body, "503 Service Unavailable"))) as target:
        client = KvopsClient(target)
        kv_map = await client.kv_map(10)
        await client.aclose()
    assert isinstance(kv_map, NotExposed)
    assert kv_map.reason == "the engine is restarting", "the node's words, and no URL"


async def test_the_token_goes_to_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    async with loopback(healthy) as target:
        client = KvopsClient(target)
        assert (await client.snapshot()).node == "gpu-1"
        await client.aclose()

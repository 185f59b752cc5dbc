"""TLS: the certificate changes while the node runs, and a connection is bounded before its handshake is done."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from starlette.responses import PlainTextResponse

from kvops.config.schema import Server
from kvops.errors import ConfigError
from kvops.node import protocol, tls
from kvops.node.access import Access
from kvops.node.audit import NoAudit
from kvops.node.listener import Listener, bind
from kvops.node.tls import Certificate
from tests.harness import start_node

KEPT = Path(__file__).parent / "certificates"
BIG = "x" * 300_000


def install(name: str, folder: Path) -> tuple[Path, Path]:
    """The pair `name` as node.pem and node.key in `folder`, replaced as a renewal does it."""
    for kind, mode in (("pem", 0o644), ("key", 0o600)):
        fresh = folder / f"fresh.{kind}"
        shutil.copy(KEPT / f"{name}.{kind}", fresh)
        fresh.chmod(mode)
        fresh.replace(folder / f"node.{kind}")
    return folder / "node.pem", folder / "node.key"


def access_of(folder: Path, name: str = "first", **server: object) -> Access:
    cert, key = install(name, folder)
    return Access(Server.model_validate({"tls": {"cert": cert, "key": key}} | server))


@contextlib.asynccontextmanager
async def serving(
    access: Access, connections: int = 20, body: str = BIG
) -> AsyncIterator[tuple[int, Listener]]:
    sock = bind("127.0.0.1", 0, "server.port")
    listener = Listener(
        PlainTextResponse(body),
        sock,
        connections=connections,
        networks=access.networks,
        certificate=access.certificate,
    )
    running = asyncio.create_task(listener.run_until_stopped())
    try:
        yield sock.getsockname()[1], listener
    finally:
        listener.should_exit = True
        await running


def trusting(name: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=KEPT / f"{name}.pem")


async def fetch(port: int, name: str) -> bytes:
    """The answer over a connection that trusts nothing but the certificate `name`. Raises ssl.SSLError."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting(name))
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    answer = await asyncio.wait_for(reader.read(), 30)
    writer.close()
    return answer


async def until(condition: Callable[[], bool], what: str) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - the conditions are not all events
            await asyncio.sleep(0.01)
    assert condition(), what


async def test_a_renewed_certificate_is_served_without_a_restart(tmp_path: Path) -> None:
    access = access_of(tmp_path)
    async with serving(access) as (port, _):
        watch = asyncio.create_task(access.watch(NoAudit()))
        assert (await fetch(port, "first")).endswith(b"x" * 1000)
        with pytest.raises(ssl.SSLCertVerificationError):
            await fetch(port, "second")
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting("first"))
        install("second", tmp_path)
        await until(lambda: access.watched[0].reloads == 1, "reloaded")
        assert (await fetch(port, "second")).startswith(b"HTTP/1.1 200")
        with pytest.raises(ssl.SSLCertVerificationError):
            await fetch(port, "first")
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200"), "a connection that stood goes on"
        writer.close()
        watch.cancel()


async def test_half_a_renewal_changes_nothing_until_it_is_whole(tmp_path: Path) -> None:
    access = access_of(tmp_path)
    (watched,) = access.watched
    async with serving(access) as (port, _):
        shutil.copy(KEPT / "second.pem", tmp_path / "node.pem")
        await watched.look()
        assert "no certificate with its key" in (watched.fault or "")
        assert (await fetch(port, "first")).startswith(b"HTTP/1.1 200")
        (tmp_path / "node.key").unlink()
        await watched.look()
        assert "server.tls.key" in (watched.fault or "")
        await watched.look()
        assert watched.failures == 2, "a fault is counted once"
        install("second", tmp_path)
        await watched.look()
        assert watched.fault is None
        assert (await fetch(port, "second")).startswith(b"HTTP/1.1 200")


async def test_who_never_begins_the_handshake_is_cut_and_counts_till_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "HANDSHAKE_SECONDS", 1.0)
    async with serving(access_of(tmp_path), connections=3) as (port, listener):
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        await until(lambda: len(listener.server_state.connections) == 3, "counted")
        with pytest.raises(OSError):  # noqa: PT011 - reset or closed, as the system has it
            await fetch(port, "first")
        assert listener.peers.refused["full"] == 1
        for reader, writer in held:
            assert await asyncio.wait_for(reader.read(), 30) == b"", "cut"
            writer.close()
        await until(lambda: not listener.server_state.connections, "forgotten")
        assert (await fetch(port, "first")).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "sent", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\xff\xff", b""]
)
async def test_what_is_no_handshake_gets_nothing_and_leaves_nothing(
    tmp_path: Path, sent: bytes
) -> None:
    async with serving(access_of(tmp_path)) as (port, listener):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        writer.write_eof()
        with contextlib.suppress(ConnectionError):
            assert b"HTTP" not in await asyncio.wait_for(reader.read(), 30)
        writer.close()
        await until(lambda: not listener.server_state.connections, "forgotten")
        assert not listener.server_state.tasks
        assert (await fetch(port, "first")).startswith(b"HTTP/1.1 200")


async def test_strangers_are_cut_before_the_handshake(tmp_path: Path) -> None:
    access = access_of(tmp_path, allow_networks=["10.0.0.0/8"])
    async with serving(access) as (port, listener):
        with pytest.raises(OSError):  # noqa: PT011 - reset or closed, as the system has it
            await fetch(port, "first")
        assert listener.peers.refused["network"] == 1


async def test_an_answer_that_nobody_takes_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "SEND_SECONDS", 0.3)
    async with serving(access_of(tmp_path), body="x" * 2**25) as (port, listener):
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting("first"))
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: bool(listener.server_state.connections), "there")
        await until(lambda: not listener.server_state.connections, "cut")
        writer.close()


async def test_who_takes_it_slowly_gets_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "SEND_SECONDS", 1.0)
    size = 3 * 2**20
    async with serving(access_of(tmp_path), body="x" * size) as (port, _):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=trusting("first"), limit=2**14
        )
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        got = 0
        async with asyncio.timeout(60):
            while got < size:
                data = await reader.read(2**16)
                assert data, f"cut after {got} bytes"
                got += len(data)
                await asyncio.sleep(0.02)
        writer.close()


async def test_a_request_that_comes_with_the_end_of_the_handshake_is_answered(
    tmp_path: Path,
) -> None:
    """A client may send both in one packet; a blocking socket with all of it written at once does."""

    def ask(port: int) -> bytes:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        talk = trusting("first").wrap_bio(incoming, outgoing, server_hostname="localhost")
        with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
            while True:
                try:
                    talk.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    sock.sendall(outgoing.read())
                    incoming.write(sock.recv(65536))
            talk.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            sock.sendall(outgoing.read())  # the last of the handshake and the request
            while True:
                try:
                    return talk.read(12)
                except ssl.SSLWantReadError:
                    incoming.write(sock.recv(65536))

    async with serving(access_of(tmp_path)) as (port, _):
        assert await asyncio.to_thread(ask, port) == b"HTTP/1.1 200"


def test_old_versions_are_not_spoken(tmp_path: Path) -> None:
    assert (
        Certificate(*install("first", tmp_path)).context.minimum_version >= ssl.TLSVersion.TLSv1_2
    )


def test_a_pair_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    cert, key = install("first", tmp_path)
    for wrong_cert, wrong_key, words in (
        (tmp_path / "none.pem", key, "server.tls.cert"),
        (cert, tmp_path / "none.key", "server.tls.key"),
        (cert, KEPT / "README.md", "readable by everyone"),
        (key, key, "no certificate with its key"),
    ):
        with pytest.raises(ConfigError, match=words):
            Certificate(wrong_cert, wrong_key)
    key.chmod(0o604)
    with pytest.raises(ConfigError, match="everyone"):
        Certificate(cert, key)


def test_a_node_over_https(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, _ = install("first", tmp_path)
    server = {
        "tls": {"cert": str(cert), "key": "node.key"},
        "allow_networks": ["127.0.0.0/8"],
    }
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    settings: dict[str, object] = {
        "model": {"name": str(tiny_model)},
        "kv_cache": {"blocks": 128},
        "runtime": {"threads": 1},
        "server": server,
    }
    node = start_node(tmp_path, settings, name="secured")
    try:
        assert node.url.startswith("https://127.0.0.1:")
        assert node.snapshot().url == node.url
        verify = ("verify", "--node", node.url, "--only", "reach.health")
        known = node.kvops(*verify)
        assert known.returncode == 0, known.stdout + known.stderr
        monkeypatch.setenv("SSL_CERT_FILE", str(KEPT / "second.pem"))
        stranger = node.kvops(*verify)
        assert stranger.returncode == 4, stranger.stdout + stranger.stderr
    finally:
        assert node.stop() == 0

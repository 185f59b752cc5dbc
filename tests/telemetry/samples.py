"""Snapshots made from the real structures, and a real loopback server that answers with whatever bytes a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec

from kvops.telemetry.snapshot import (
    Known,
    KvMap,
    KvUsage,
    LatencyWindow,
    MemoryLedger,
    ModelInfo,
    NodeSnapshot,
    NotExposed,
    Percentiles,
    PrefixCache,
    Progress,
    QueueState,
    RequestRow,
    TenantUsage,
    Traffic,
    encode,
)
from kvops.telemetry.targets import Target

NOW = 1_800_000_000.0
GIB = 2**30


def percentiles(samples: int, scale: float) -> Percentiles:
    """As a node would state them: nothing claimed from too few samples."""
    return Percentiles(
        samples,
        scale if samples >= 5 else None,
        3 * scale if samples >= 20 else None,
        5 * scale if samples >= 100 else None,
        6 * scale if samples else None,
    )


def request_row(number: int, **changes: object) -> RequestRow:
    row = RequestRow(
        request_id=f"cmpl-{number:08x}", tenant="acme", priority="normal", state="decode", prompt_tokens=1024,
        generated_tokens=120, max_tokens=512, kv_blocks=72 - number, cached_tokens=512, age_seconds=12.0 + number,
        wait_seconds=0.4, ttft_seconds=0.61, preemptions=0,
    )  # fmt: skip
    return msgspec.structs.replace(row, **changes)


def make_snapshot(
    *, node: str = "gpu-1", at: float = NOW, samples: int = 240, **changes: object
) -> NodeSnapshot:
    reserved, block = 8 * GIB, 720 * 1024
    total_blocks = 11_650
    used, cached = 7_000, 2_000
    snapshot = NodeSnapshot(
        node=node, engine="kvops", engine_version="0.1.0", url="http://127.0.0.1:8000", taken_at=at, state="ready",
        state_reason="", uptime_seconds=Known(3700.0, at),
        model=Known(ModelInfo("smollm2-135m", "llama", 134_515_008, "q4_1", "float32", 8192, "0123456789ab"), at),
        config_hash=Known("f00dfeed1234", at),
        memory=Known(
            MemoryLedger("cpu", 24 * GIB, GIB // 2, reserved, GIB // 4, 5 * GIB, 24 * GIB - 13 * GIB - 3 * GIB // 4,
                         used * block, cached * block), at),
        kv=Known(KvUsage(16, total_blocks, used, cached, total_blocks - used - cached, block, 0.021, 40, 3), at),
        prefix_cache=Known(PrefixCache(True, 100_000, 64_000, 16), at),
        queue=Known(QueueState(12, 3, 4.2, 16, 256, {"online": 1, "normal": 2, "batch": 0}), at),
        latency=Known(
            LatencyWindow(300.0, percentiles(samples, 0.31), percentiles(samples, 0.022), percentiles(samples, 0.05),
                          percentiles(samples, 4.0)), at),
        traffic=Known(
            Traffic({"completed": 230, "error": 2}, {"queue_full": 8}, 240_000, 61_000, 60.0, 812.0, 231.0, 2.4, 0.01),
            at),
        progress=Known(Progress(52_000, 0.02, True, 0, 0), at),
        gpus=NotExposed("no GPU on this machine"),
        tenants=Known((TenantUsage("acme", 9, 3, 4200, 5000), TenantUsage("nightly", 3, 0, 2800, None)), at),
        requests=Known(tuple(request_row(number) for number in range(12)), at),
    )  # fmt: skip
    return msgspec.structs.replace(snapshot, **changes)


def make_map(cells: int = 400) -> KvMap:
    letters = "s" * (cells // 5) + "p" * (cells // 4) + "m" * (cells // 10) + "c" * (cells // 5)
    return KvMap(11_650, 30, letters.ljust(cells, "f"), NOW)


Answer = Callable[[str, str, dict[str, str]], Awaitable[bytes]]


@asynccontextmanager
async def loopback(answer: Answer) -> AsyncIterator[Target]:
    """A real TCP server: `answer(method, path, headers)` gives the raw bytes of each reply."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, path, _ = head[0].split(" ")
            pairs = (line.split(": ", 1) for line in head[1:] if ": " in line)
            headers = {name.lower(): value for name, value in pairs}
            if length := int(headers.get("content-length", "0")):
                headers["body"] = (await reader.readexactly(length)).decode()
            writer.write(await answer(method, path, headers))
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield Target(
            name="gpu-1",
            url=f"http://127.0.0.1:{port}",
            control_url=f"http://127.0.0.1:{port}",
            token="secret",
        )
    finally:
        server.close()


def reply(body: bytes, status: str = "200 OK") -> bytes:
    lines = (
        f"HTTP/1.1 {status}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        "connection: close",
    )
    return "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n" + body


async def healthy(method: str, path: str, headers: dict[str, str]) -> bytes:
    """Answers as a node does."""
    if headers.get("authorization") != "Bearer secret":
        return reply(b'{"error":{"message":"no","code":"invalid_api_key"}}', "401 Unauthorized")
    if path == "/control/snapshot":
        return reply(encode(make_snapshot()))
    if path.startswith("/control/kv/map?cells="):
        return reply(encode(make_map(int(path.rpartition("=")[2]))))
    if path == "/control/cancel":
        return reply(
            b'{"cancelled":true}' if "cmpl-1" in headers["body"] else b'{"cancelled":false}'
        )
    return reply(b"{}")

"""Readings of a node while something goes on: what grows although the work does not."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import httpx
import msgspec

from kvops.errors import NodeError, NodeProtocolError
from kvops.load.machine import node_pid
from kvops.telemetry import prometheus
from kvops.telemetry.prometheus import Exposition
from kvops.telemetry.snapshot import Known
from kvops.verify.context import Context
from kvops.verify.processes import Children

Names = Mapping[str, tuple[str, Mapping[str, str]]]
"""By the name of a reading: a metric family and labels; all series that have them are summed up."""

GROWING: Names = {
    "resident memory": ("process_resident_memory_bytes", {}),
    "daemon memory": ("kvops_daemon_resident_bytes", {}),
    "other memory": ("kvops_memory_bytes", {"account": "other"}),
    "open files": ("kvops_daemon_open_files", {}),
    "descriptors": ("process_open_fds", {}),
    "threads": ("kvops_daemon_threads", {}),
    "tasks": ("kvops_daemon_tasks", {}),
}
DEVICE = {account: ("kvops_memory_bytes", {"account": account}) for account in ("total", "free")}
ENGINE = "engine memory"
"""Of the engine's own processes; read only where the node runs on this machine."""


class Readings(msgspec.Struct):
    """By name, times (seconds since the first look) and values; what the node does not show is not in it."""

    series: dict[str, tuple[list[float], list[float]]] = {}
    total_memory: float | None = None
    """Of the device, bytes."""
    free_memory: float | None = None
    device: str = ""
    """As the node's ledger names it; empty where it is not told."""

    def values(self, name: str) -> Sequence[float]:
        return self.series[name][1] if name in self.series else ()


@asynccontextmanager
async def watched(context: Context, every: float = 0.5) -> AsyncIterator[Readings]:
    """Looks at `/metrics` until the block is left; what is then in the readings is all."""
    found = _empty()
    found.device = await _device(context)
    pid = node_pid(context.target.url)
    children = None if pid is None else Children(pid)
    task = asyncio.create_task(_watch(context, found, children, every))
    try:
        yield found
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def _empty() -> Readings:
    return Readings(series=defaultdict(lambda: ([], [])))


async def _device(context: Context) -> str:
    try:
        memory = None if context.node is None else (await context.node.snapshot()).memory
    except NodeError:
        return ""
    return memory.value.device if isinstance(memory, Known) else ""


async def _watch(context: Context, into: Readings, children: Children | None, every: float) -> None:
    started = time.monotonic()
    while True:
        page = await look(context)
        at = time.monotonic() - started
        if page is not None:
            take(page, at, into)
        own = None if children is None else children.own_bytes()
        if own is not None:
            _add(into, ENGINE, at, own)
        await asyncio.sleep(every)


async def look(context: Context) -> Exposition | None:
    """The metrics page; None when it does not come: a busy node is asked again."""
    try:
        reply = await context.api.get("/metrics", within=5)
        return prometheus.parse(reply.text) if reply.status == 200 else None
    except (httpx.HTTPError, NodeProtocolError):
        return None


def take(page: Exposition, at: float, into: Readings) -> None:
    for name, (family, labels) in GROWING.items():
        value = page.total(family, **labels)
        if value is not None:
            _add(into, name, at, value)
    into.total_memory, into.free_memory = (
        page.total(family, **labels) for family, labels in DEVICE.values()
    )


def _add(into: Readings, name: str, at: float, value: float) -> None:
    times, values = into.series[name]
    times.append(at)
    values.append(value)


def levels(page: Exposition) -> dict[str, float]:
    """All readings of one page."""
    once = _empty()
    take(page, 0.0, once)
    return {name: values[0] for name, (_, values) in once.series.items()}

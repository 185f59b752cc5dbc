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

from kvops.errors import NodeProtocolError
from kvops.telemetry import prometheus
from kvops.telemetry.prometheus import Exposition
from kvops.verify.context import Context

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
TOTAL = ("kvops_memory_bytes", {"account": "total"})


class Readings(msgspec.Struct):
    """By name, times (seconds since the first look) and values; what the node does not show is not in it."""

    series: dict[str, tuple[list[float], list[float]]] = {}
    total_memory: float | None = None
    """Of the device, bytes."""

    def values(self, name: str) -> Sequence[float]:
        return self.series[name][1] if name in self.series else ()


@asynccontextmanager
async def watched(context: Context, every: float = 0.5) -> AsyncIterator[Readings]:
    """Looks at `/metrics` until the block is left; what is then in the readings is all."""
    found = Readings(series=defaultdict(lambda: ([], [])))
    task = asyncio.create_task(_watch(context, found, every))
    try:
        yield found
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _watch(context: Context, into: Readings, every: float) -> None:
    started = time.monotonic()
    while True:
        page = await look(context)
        if page is not None:
            take(page, time.monotonic() - started, into)
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
            times, values = into.series[name]
            times.append(at)
            values.append(value)
    into.total_memory = page.total(TOTAL[0], **TOTAL[1])


def levels(page: Exposition) -> dict[str, float]:
    """All readings of one page."""
    once = Readings(series=defaultdict(lambda: ([], [])))
    take(page, 0.0, once)
    return {name: values[0] for name, (_, values) in once.series.items()}

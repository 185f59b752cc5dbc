"""What grows with requests: memory, descriptors, threads and tasks of a node over thousands of short ones.

The daemon's latency windows keep the samples of five minutes, at most 100,000 each: that much growth is no leak.
A slope is the median of the slopes between all pairs of readings (Theil-Sen), so that one odd reading moves nothing.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from benchmarks.node import Node, running_node
from benchmarks.table import Row
from tests.tiny import make_tiny_model

REQUESTS = 5000
CONTROL_REQUESTS = 1000
WARM_UP = 2000
ROUND = 250
CLIENTS = 8
MEMORY_BAR = 1.0
"""MB per 1,000 requests, each process."""
COUNT_BAR = 0.5
"""Of descriptors, threads and tasks, per 1,000 requests: less than one."""
_BARS = {
    "daemon memory": (MEMORY_BAR, " MB"),
    "engine memory": (MEMORY_BAR, " MB"),
    "descriptors": (COUNT_BAR, ""),
    "threads": (COUNT_BAR, ""),
    "tasks": (COUNT_BAR, ""),
}


@dataclass(frozen=True)
class Reading:
    requests: int
    values: dict[str, float]


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny_model(Path(folder) / "tiny")
        slopes = _slopes(_readings(model, WARM_UP, REQUESTS, {}))
        for what, (bar, unit) in _BARS.items():
            yield Row(
                f"growth of {what}",
                f"{slopes[what]:+.3f}{unit} per 1,000 requests",
                f"{REQUESTS} requests after {WARM_UP}",
                slopes[what], bar, False, unit,
            )  # fmt: skip
        leaky = {"KVOPS_FAILPOINTS": "request.ends.leaks"}
        leaks = _slopes(_readings(model, ROUND, CONTROL_REQUESTS, leaky))
        for what in ("daemon memory", "descriptors", "tasks"):
            bar, unit = _BARS[what]
            yield Row(
                f"control: a leak of {what} is caught",
                f"{leaks[what]:+.1f}{unit} per 1,000 requests",
                f"the bar of its absence, {bar:g}{unit}",
                leaks[what], bar, True, unit,
            )  # fmt: skip


def _readings(
    model: Path, warm_up: int, requests: int, environment: dict[str, str]
) -> list[Reading]:
    settings = {"KVOPS_KV_CACHE__BLOCKS": "256", "KVOPS_RUNTIME__THREADS": "1", **environment}
    with (
        running_node("--model", str(model), settings=settings) as node,
        ThreadPoolExecutor(CLIENTS) as pool,
    ):
        clients = [httpx.Client(base_url=node.url, timeout=60) for _ in range(CLIENTS)]
        served = httpx.get(f"{node.url}/v1/models").json()["data"][0]["id"]

        def share(client: httpx.Client) -> None:
            for number in range(ROUND // CLIENTS + 1):
                body = {"model": served, "prompt": f"request {number % 7}", "max_tokens": 2}
                client.post("/v1/completions", json=body).raise_for_status()

        taken = []
        for done in range(0, warm_up + requests + 1, ROUND):
            if done >= warm_up:
                taken.append(Reading(done, _read(node)))
            list(pool.map(share, clients))
        for client in clients:
            client.close()
    return taken


def _read(node: Node) -> dict[str, float]:
    exposed = dict(
        line.rsplit(" ", 1)
        for line in httpx.get(f"{node.url}/metrics").text.splitlines()
        if line.startswith("kvops_daemon_")
    )
    (engine,) = psutil.Process(node.pid).children()
    return {
        "daemon memory": float(exposed["kvops_daemon_resident_bytes"]) / 1e6,
        "engine memory": engine.memory_info().rss / 1e6,
        "descriptors": float(exposed["kvops_daemon_open_files"]) + engine.num_fds(),
        "threads": float(exposed["kvops_daemon_threads"]) + engine.num_threads(),
        "tasks": float(exposed["kvops_daemon_tasks"]),
    }


def _slopes(readings: Sequence[Reading]) -> dict[str, float]:
    """Per 1,000 requests."""
    return {
        what: 1000
        * statistics.median(
            (later.values[what] - earlier.values[what]) / (later.requests - earlier.requests)
            for earlier, later in itertools.combinations(readings, 2)
        )
        for what in _BARS
    }

"""The node as a service: killed, hung and ended under load, its growth, and what access, audit and alerts measure."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import psutil

from benchmarks import access, alerts, audit, growth
from benchmarks.client import prompt
from benchmarks.node import Node, pull_default_model, running_node
from benchmarks.table import Row
from kvops.telemetry.snapshot import Known

STREAMS = 16
STALL_AFTER = 5.0
KILLS = 3
PATIENCE = 120.0
NAMED = "engine_restarted"


def measure() -> Iterator[Row]:
    pull_default_model()
    settings = {
        "KVOPS_RUNTIME__STALL_AFTER": f"{STALL_AFTER:g}s",
        "KVOPS_RUNTIME__DRAIN_TIMEOUT": "120s",
        "KVOPS_RESTART__BACKOFF": "0s",
        "KVOPS_QUARANTINE__CRASHES": "1000",
    }
    with running_node(settings=settings) as node:
        yield from _killed(node)
        yield from _hung(node)
        yield alerts.drill_row(node)
        yield _ended(node)
    yield from growth.rows()
    yield from access.rows()
    yield from audit.rows()


def _killed(node: Node) -> Iterator[Row]:
    ends: list[str] = []
    seconds: list[float] = []
    for _ in range(KILLS):
        with ThreadPoolExecutor(STREAMS) as pool:
            load = _under_load(node, pool, max_tokens=1500)
            _engine(node).kill()
            begun = time.monotonic()
            ends += [one.result() for one in load]
            _until(lambda: _is_ready(node))
            seconds.append(time.monotonic() - begun)
    yield Row(
        "engine killed with -9: ready again", f"{max(seconds):.2f} s", f"the slowest of {KILLS}",
        max(seconds), 6, False, " s",
    )  # fmt: skip
    yield _named(ends)


def _named(ends: list[str]) -> Row:
    """How many of those in flight got the error that says what happened."""
    named = 100 * ends.count(NAMED) / len(ends)
    return Row(
        "… in flight, answered with a named error", f"{named:.0f} %", _counted(ends),
        named, 100, True, " %",
    )  # fmt: skip


def _hung(node: Node) -> Iterator[Row]:
    with ThreadPoolExecutor(STREAMS) as pool:
        load = _under_load(node, pool, max_tokens=1500)
        _engine(node).send_signal(signal.SIGSTOP)
        begun = time.monotonic()
        _until(lambda: httpx.get(f"{node.url}/livez").status_code == 503)
        seen = time.monotonic() - begun
        ends = [one.result() for one in load]
        told = time.monotonic() - begun
    bar = STALL_AFTER + 2
    yield Row(
        "engine hangs: /livez says so",
        f"{seen:.2f} s",
        f"stall_after {STALL_AFTER:g} s",
        seen,
        bar,
        False,
        " s",
    )
    yield Row(
        "… and the last in flight is told",
        f"{told:.2f} s",
        f"stall_after {STALL_AFTER:g} s",
        told,
        bar,
        False,
        " s",
    )
    yield _named(ends)
    _until(lambda: _is_ready(node))


def _ended(node: Node) -> Row:
    with ThreadPoolExecutor(STREAMS) as pool:
        load = _under_load(node, pool, max_tokens=200)
        process = psutil.Process(node.pid)
        process.send_signal(signal.SIGTERM)
        ends = [one.result() for one in load]
        process.wait(PATIENCE)
    broken = len(ends) - ends.count("done")
    return Row(
        f"SIGTERM under {STREAMS} streams: broken", str(broken), _counted(ends), broken, 0, False
    )


def _under_load(node: Node, pool: ThreadPoolExecutor, max_tokens: int) -> list[Future[str]]:
    """STREAMS requests, every fourth not streamed; returns when all run."""
    load = [pool.submit(_ask, node, number, max_tokens) for number in range(STREAMS)]
    _until(lambda: _running(node) == STREAMS)
    return load


_ROUND = iter(range(10**9))
_ROUND_LOCK = threading.Lock()


def _ask(node: Node, number: int, max_tokens: int) -> str:
    """How a request ended: `done`, the code of its error, or how its connection broke."""
    with _ROUND_LOCK:
        text = prompt(next(_ROUND), 30)
    body = {
        "model": "smollm2-135m", "prompt": text, "max_tokens": max_tokens, "temperature": 0,
        "ignore_eos": True, "stream": number % 4 != 0,
    }  # fmt: skip
    try:
        answer = httpx.post(f"{node.url}/v1/completions", json=body, timeout=PATIENCE)
    except httpx.HTTPError as error:
        return type(error).__name__
    if answer.status_code != 200:
        return str(answer.json()["error"]["code"])
    if not body["stream"]:
        return "done"
    last = answer.text.strip().rpartition("data: ")[2]
    return "done" if last == "[DONE]" else str(json.loads(last)["error"]["code"])


def _counted(ends: list[str]) -> str:
    return ", ".join(f"{count} {how}" for how, count in Counter(ends).most_common())


def _engine(node: Node) -> psutil.Process:
    (engine,) = psutil.Process(node.pid).children()
    return engine


def _running(node: Node) -> int:
    queue = node.snapshot().queue
    return queue.value.running if isinstance(queue, Known) else 0


def _is_ready(node: Node) -> bool:
    return httpx.get(f"{node.url}/readyz").status_code == 200


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {PATIENCE:.0f} s")
        time.sleep(0.02)

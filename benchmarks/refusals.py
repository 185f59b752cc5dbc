"""Bodies of 4 MB that are refused: how long each takes, and how long others wait for an answer meanwhile."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator

import httpx

from benchmarks.node import Node
from benchmarks.table import Row

_TIMES = 5
_MILLION = 1_000_000
_BODIES = {
    "a million stop strings": ("completions", {"prompt": "x", "stop": ["a"] * _MILLION}),
    "text of 4 MB, far too long": ("completions", {"prompt": "hello you " * 400_000}),
    "100,000 messages": (
        "chat/completions",
        {"messages": [{"role": "user", "content": "x"}] * 100_000},
    ),
    "1.8 million token ids": ("completions", {"prompt": [1] * 1_800_000}),
}
_BARS = {"a million stop strings": 50.0, "text of 4 MB, far too long": 100.0}


def rows(node: Node) -> Iterator[Row]:
    waited = []
    for what, (path, body) in _BODIES.items():
        data = json.dumps({"model": "smollm2-135m", **body}, separators=(",", ":")).encode()
        seconds, longest = zip(*(_refused(node, path, data) for _ in range(_TIMES)), strict=True)
        waited.append(min(longest))
        if what in _BARS:
            value = 1000 * min(seconds)
            yield Row(
                f"{what}: refused", f"{value:.0f} ms", f"the quickest of {_TIMES}",
                value, _BARS[what], False, " ms",
            )  # fmt: skip
    value = 1000 * max(waited)
    yield Row(
        "/livez beside bodies of 4 MB that are refused", f"{value:.0f} ms",
        f"{', '.join(_BODIES)}: the longest wait, each the best of {_TIMES}", value, 100, False, " ms",
    )  # fmt: skip


def _refused(node: Node, path: str, data: bytes) -> tuple[float, float]:
    """Seconds until the refusal, and the longest that /livez took meanwhile."""
    done = threading.Event()
    waits = [0.0]
    beside = threading.Thread(target=_look, args=(node, done, waits))
    headers = {"Content-Type": "application/json"}
    with httpx.Client(timeout=60) as client:
        client.get(f"{node.url}/livez")
        beside.start()
        begun = time.perf_counter()
        answer = client.post(f"{node.url}/v1/{path}", content=data, headers=headers)
        seconds = time.perf_counter() - begun
    done.set()
    beside.join()
    assert answer.status_code == 400, answer.text
    return seconds, max(waits)


def _look(node: Node, done: threading.Event, waits: list[float]) -> None:
    with httpx.Client(timeout=60) as client:
        while not done.is_set():
            begun = time.perf_counter()
            client.get(f"{node.url}/livez")
            waits.append(time.perf_counter() - begun)
            time.sleep(0.002)

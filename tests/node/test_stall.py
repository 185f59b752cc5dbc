"""A hung engine is seen and replaced by its own silence, whether or not a client still waits for it."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from kvops.telemetry.snapshot import Known
from tests.harness import RunningNode, start_node
from tests.node.conftest import HTTP, complete, eventually, model_of


@pytest.fixture
def node(tiny_model: Path, tmp_path: Path) -> Iterator[RunningNode]:
    settings: dict[str, object] = {
        "model": {"name": str(tiny_model)},
        "kv_cache": {"blocks": 64},
        "runtime": {"threads": 1, "stall_after": "2s", "queue_timeout": "1s"},
    }
    node = start_node(tmp_path / "home", settings, name="hung")
    model_of(node)
    yield node
    node.stop()


def restarts(node: RunningNode) -> int:
    progress = node.snapshot().progress
    assert isinstance(progress, Known)
    return progress.value.engine_restarts


def livez(node: RunningNode) -> int:
    return HTTP.get(f"{node.url}/livez").status_code


def test_an_engine_that_hangs_without_work_is_seen_and_replaced(node: RunningNode) -> None:
    node.engine().send_signal(signal.SIGSTOP)
    eventually(lambda: livez(node) == 503, "the silence is seen")
    assert node.snapshot().state == "stalled"
    eventually(lambda: restarts(node) == 1, "the engine is replaced")
    eventually(lambda: HTTP.get(f"{node.url}/readyz").status_code == 200, "ready again", 60)
    assert complete(node, max_tokens=1).status_code == 200


def test_clients_that_give_up_do_not_wind_the_clock_back(node: RunningNode) -> None:
    node.engine().send_signal(signal.SIGSTOP)
    seen = set()

    def replaced() -> bool:
        body = {"model": model_of(node), "prompt": "hello", "max_tokens": 1}
        with contextlib.suppress(httpx.TimeoutException):
            httpx.post(f"{node.url}/v1/completions", json=body, timeout=0.5)
        seen.add(livez(node))
        return restarts(node) == 1

    eventually(replaced, "the engine is replaced while clients come and go", 30)
    assert 503 in seen

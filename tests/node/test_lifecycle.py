"""What happens around a request: clients that go, queues that fill, deadlines, a dead or hung engine, the end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from kvops import registry
from kvops.cli.node import _drain_timeout
from kvops.telemetry.snapshot import Known
from tests.harness import RunningNode, run_kvops, start_node
from tests.node.conftest import (
    HTTP,
    complete,
    error_of,
    eventually,
    eventually_idle,
    in_flight,
    model_of,
    used_blocks,
)


def raw_post(node: RunningNode, **fields: Any) -> socket.socket:
    """A connection on which a completion was asked for; closing it is the client going away."""
    body = {
        "model": model_of(node),
        "prompt": "hello",
        "temperature": 0,
        "ignore_eos": True,
        **fields,
    }
    content = json.dumps(body).encode()
    host, port = node.url.removeprefix("http://").split(":")
    sock = socket.create_connection((host, int(port)), timeout=30)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
    sock.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    return sock


@contextlib.contextmanager
def occupied(node: RunningNode) -> Iterator[None]:
    """The node's one place in the batch is taken by a long generation."""
    with raw_post(node, max_tokens=16_000, stream=True):
        eventually(lambda: used_blocks(node.snapshot()) > 0, "the occupant runs")
        yield
    eventually_idle(node)


def outcome(node: RunningNode, name: str) -> int:
    traffic = node.snapshot().traffic
    assert isinstance(traffic, Known)
    return traffic.value.requests_by_outcome[name]


def refused(node: RunningNode, reason: str) -> int:
    traffic = node.snapshot().traffic
    assert isinstance(traffic, Known)
    return traffic.value.rejections_by_reason.get(reason, 0)


def in_thread(work: Callable[[], httpx.Response]) -> tuple[threading.Thread, list[httpx.Response]]:
    answers: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: answers.append(work()))
    thread.start()
    return thread, answers


@pytest.mark.parametrize("fields", [{"stream": True}, {}, {"n": 1, "prompt": ["a", "b"]}])
def test_a_client_that_leaves_in_decode_frees_the_blocks(
    narrow_node: RunningNode, fields: dict[str, Any]
) -> None:
    before = outcome(narrow_node, "cancelled")
    with raw_post(narrow_node, max_tokens=16_000, **fields):
        eventually(lambda: used_blocks(narrow_node.snapshot()) > 0, "the request runs")
    eventually_idle(narrow_node)
    assert outcome(narrow_node, "cancelled") == before + 1


def test_a_client_that_leaves_in_prefill_frees_the_blocks(narrow_node: RunningNode) -> None:
    with raw_post(narrow_node, prompt=[n % 200 for n in range(12_000)], max_tokens=10):
        eventually(lambda: in_flight(narrow_node.snapshot()) > 0, "the request is in")
    eventually_idle(narrow_node)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_the_queue_is_forgotten(
    narrow_node: RunningNode, stream: bool
) -> None:
    with occupied(narrow_node):
        with raw_post(narrow_node, max_tokens=4, stream=stream):
            eventually(lambda: in_flight(narrow_node.snapshot()) == 2, "the second waits")
        eventually(lambda: in_flight(narrow_node.snapshot()) == 1, "the second is gone")


def test_all_siblings_go_with_their_client(tiny_node: RunningNode) -> None:
    with raw_post(tiny_node, n=4, temperature=1, max_tokens=500):
        eventually(lambda: in_flight(tiny_node.snapshot()) == 4, "four choices run")
    eventually_idle(tiny_node)


@pytest.mark.parametrize("stream", [True, False])
def test_queue_full_and_queue_timeout(narrow_node: RunningNode, stream: bool) -> None:
    ended, before = outcome(narrow_node, "timeout"), refused(narrow_node, "queue_timeout")
    with occupied(narrow_node):
        thread, answers = in_thread(lambda: complete(narrow_node, max_tokens=1, stream=stream))
        eventually(lambda: in_flight(narrow_node.snapshot()) == 2, "one waits")
        full = complete(narrow_node, stream=stream)
        assert (full.status_code, error_of(full)["code"]) == (429, "queue_full")
        thread.join(20)
        assert (answers[0].status_code, error_of(answers[0])["code"]) == (503, "queue_timeout")
        assert refused(narrow_node, "queue_timeout") == before + 1
        assert outcome(narrow_node, "timeout") == ended, "counted once"


def test_request_timeout_is_a_status_or_the_last_event(narrow_node: RunningNode) -> None:
    plain = complete(narrow_node, max_tokens=16_000)
    assert (plain.status_code, error_of(plain)["code"]) == (504, "request_timeout")
    stream = complete(narrow_node, max_tokens=16_000, stream=True)
    assert stream.status_code == 200
    last = stream.text.strip().rpartition("data: ")[2]
    assert json.loads(last)["error"]["code"] == "request_timeout"
    assert "[DONE]" not in stream.text
    eventually_idle(narrow_node)


def test_an_operator_cancels(narrow_node: RunningNode) -> None:
    thread, answers = in_thread(lambda: complete(narrow_node, max_tokens=16_000))
    eventually(lambda: in_flight(narrow_node.snapshot()) == 1, "the request runs")
    requests = narrow_node.snapshot().requests
    assert isinstance(requests, Known)
    body = {"request_id": requests.value[0].request_id}
    assert narrow_node.control("POST", "/control/cancel", json=body).json() == {"cancelled": True}
    thread.join(20)
    assert (answers[0].status_code, error_of(answers[0])["code"]) == (409, "cancelled")
    eventually_idle(narrow_node)


def test_priority_classes_are_shown(narrow_node: RunningNode) -> None:
    with occupied(narrow_node), raw_post(narrow_node, max_tokens=1, priority="batch"):
        eventually(lambda: in_flight(narrow_node.snapshot()) == 2, "one waits")
        queue = narrow_node.snapshot().queue
        assert isinstance(queue, Known)
        assert queue.value.waiting_by_class == {"online": 0, "normal": 0, "batch": 1}
        assert queue.value.oldest_wait_seconds is not None


def engine_of(node: RunningNode) -> psutil.Process:
    (child,) = psutil.Process(node.process.pid).children()
    return child


@pytest.fixture(scope="module")
def mortal_node(
    long_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningNode]:
    """Its engine is killed and hung here, in the end it is stopped."""
    settings: dict[str, object] = {
        "model": {"name": str(long_model)},
        "kv_cache": {"blocks": 1024},
        "runtime": {"threads": 1, "stall_after": "1s", "drain_timeout": "20s"},
    }
    node = start_node(tmp_path_factory.mktemp("mortal"), settings, name="mortal")
    yield node
    node.stop()


def ready(node: RunningNode) -> bool:
    return HTTP.get(f"{node.url}/readyz").status_code == 200


def test_a_killed_engine_is_replaced_and_everyone_told(mortal_node: RunningNode) -> None:
    plain, answers = in_thread(lambda: complete(mortal_node, max_tokens=16_000))
    stream, streamed = in_thread(lambda: complete(mortal_node, max_tokens=16_000, stream=True))
    eventually(lambda: used_blocks(mortal_node.snapshot()) > 1, "both run")
    engine_of(mortal_node).kill()
    plain.join(20)
    stream.join(20)
    assert (answers[0].status_code, error_of(answers[0])["code"]) == (503, "engine_restarted")
    assert "engine_restarted" in streamed[0].text
    assert "[DONE]" not in streamed[0].text
    eventually(lambda: ready(mortal_node), "the node is ready again", 30)
    assert complete(mortal_node, max_tokens=4).status_code == 200
    assert (
        'kvops_engine_restarts_total{reason="killed"} 1.0'
        in HTTP.get(f"{mortal_node.url}/metrics").text
    )


def test_a_hung_engine_is_seen_and_replaced(mortal_node: RunningNode) -> None:
    steps = mortal_node.snapshot().progress
    engine_of(mortal_node).send_signal(signal.SIGSTOP)
    assert HTTP.get(f"{mortal_node.url}/livez").status_code == 200, "idle is alive"
    with raw_post(mortal_node, max_tokens=4) as waiting:
        eventually(
            lambda: HTTP.get(f"{mortal_node.url}/livez").status_code == 503, "the stall is seen"
        )
        assert HTTP.get(f"{mortal_node.url}/readyz").json()["status"] in ("stalled", "restarting")
        assert waiting.recv(100).startswith(b"HTTP/1.1 503")
    eventually(lambda: ready(mortal_node), "the node is ready again", 30)
    after = mortal_node.snapshot().progress
    assert isinstance(steps, Known)
    assert isinstance(after, Known)
    assert after.value.steps >= steps.value.steps, "counters go on over a restart"
    assert complete(mortal_node, max_tokens=4).status_code == 200


def test_a_node_that_drains_is_taken_out_quietly_whatever_its_engine_does(
    mortal_node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    eventually(lambda: ready(mortal_node), "ready")
    mortal_node.control("POST", "/control/drain")
    engine_of(mortal_node).kill()
    seen: set[str] = set()

    def back() -> bool:
        answer = HTTP.get(f"{mortal_node.url}/readyz")
        assert answer.status_code == 404
        seen.add(answer.json()["status"])
        return "restarting" in seen and answer.json()["status"] == "draining"

    eventually(back, "the engine is back", 60)
    mortal_node.control("POST", "/control/resume")
    eventually(lambda: ready(mortal_node), "ready")

    monkeypatch.setenv("KVOPS_HOME", str(mortal_node.home))
    record = registry.read(mortal_node.name)
    assert record is not None
    assert _drain_timeout(record) == 20, "which `kvops node stop` waits for"


def test_sigterm_finishes_streams_and_exits_0(mortal_node: RunningNode) -> None:
    eventually(lambda: ready(mortal_node), "ready")
    engine = engine_of(mortal_node)
    started = in_thread(lambda: complete(mortal_node, max_tokens=600, stream=True))
    others = in_thread(lambda: complete(mortal_node, max_tokens=600))
    eventually(lambda: in_flight(mortal_node.snapshot()) == 2, "both run")
    mortal_node.process.send_signal(signal.SIGTERM)
    eventually(lambda: HTTP.get(f"{mortal_node.url}/readyz").status_code == 404, "not ready")
    body = {"model": model_of(mortal_node), "prompt": "x"}
    assert error_of(HTTP.post(f"{mortal_node.url}/v1/completions", json=body))["code"] == "draining"
    assert mortal_node.process.wait(30) == 0, mortal_node.log.read_text()
    for thread, answers in (started, others):
        thread.join(5)
        assert answers[0].status_code == 200
    assert started[1][0].text.endswith("data: [DONE]\n\n")
    assert others[1][0].json()["usage"]["completion_tokens"] == 600
    assert not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE
    assert run_kvops("node", "status", env=mortal_node.env).returncode == 4


def test_a_second_signal_cuts_streams_with_an_error(long_model: Path, tmp_path: Path) -> None:
    settings: dict[str, object] = {
        "model": {"name": str(long_model)},
        "kv_cache": {"blocks": 1024},
        "runtime": {"threads": 1},
    }
    node = start_node(tmp_path / "home", settings, name="hurried")
    thread, answers = in_thread(lambda: complete(node, max_tokens=16_000, stream=True))
    eventually(lambda: used_blocks(node.snapshot()) > 1, "the stream runs")
    node.process.send_signal(signal.SIGTERM)
    eventually(lambda: HTTP.get(f"{node.url}/readyz").status_code == 404, "not ready")
    node.process.send_signal(signal.SIGTERM)
    assert node.process.wait(15) == 0
    thread.join(5)
    assert '"code":"draining"' in answers[0].text
    assert "[DONE]" not in answers[0].text


def test_an_engine_dies_with_its_daemon(tiny_model: Path, tmp_path: Path) -> None:
    settings: dict[str, object] = {"model": {"name": str(tiny_model)}, "kv_cache": {"blocks": 32}}
    node = start_node(tmp_path / "home", settings, name="orphan")
    engine = engine_of(node)
    os.kill(node.process.pid, signal.SIGKILL)
    node.process.wait()
    eventually(
        lambda: not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE,
        "the engine is gone",
    )

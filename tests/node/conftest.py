"""Nodes with narrow limits, with keys, and helpers to talk to them over real sockets."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from kvops.telemetry.snapshot import Known, NodeSnapshot
from tests.harness import RunningNode, start_node
from tests.tiny import make_tiny_model

HTTP = httpx.Client(timeout=30, trust_env=False)
"""Shared, since making a client costs more than most requests here."""
KEYS = {"alice": "kvk_alice_secret", "bob": "kvk_bob_secret"}


def keys_file(folder: Path, keys: dict[str, str]) -> Path:
    """A file with one key for each tenant, as `server.api_keys_file` wants it; its id is `<tenant>-1`."""
    file = folder / "keys.yaml"
    rows = [
        {"id": f"{tenant}-1", "tenant": tenant, "sha256": hashlib.sha256(key.encode()).hexdigest()}
        for tenant, key in keys.items()
    ]
    file.write_text(yaml.safe_dump(rows))
    file.chmod(0o600)
    return file


@pytest.fixture(scope="session")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny, with room for generations that last many seconds."""
    return make_tiny_model(tmp_path_factory.mktemp("long") / "long-llama", max_context=16384)


@pytest.fixture(scope="module")
def narrow_node(
    long_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningNode]:
    """One request at a time, one waiting, short deadlines, a small body."""
    settings: dict[str, object] = {
        "model": {"name": str(long_model)},
        "kv_cache": {"blocks": 1024},
        "runtime": {
            "threads": 1,
            "max_batch_size": 1,
            "max_queue": 1,
            "queue_timeout": "1s",
            "request_timeout": "4s",
        },
        "limits": {"body_bytes": "64KiB", "body_timeout": "500ms", "json_depth": 16},
    }
    node = start_node(tmp_path_factory.mktemp("narrow"), settings, name="narrow")
    yield node
    assert node.stop() == 0


@pytest.fixture(scope="module")
def keyed_node(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    home = tmp_path_factory.mktemp("keyed")
    keys = keys_file(home, KEYS)
    settings: dict[str, object] = {
        "model": {"name": str(tiny_model)},
        "kv_cache": {"blocks": 128},
        "runtime": {"threads": 1},
        "server": {"api_keys_file": str(keys)},
    }
    node = start_node(home, settings, name="keyed")
    yield node
    node.stop()


_MODELS: dict[str, str] = {}


def model_of(node: RunningNode, key: str | None = None) -> str:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    if node.url not in _MODELS:
        _MODELS[node.url] = HTTP.get(f"{node.url}/v1/models", headers=headers).json()["data"][0][
            "id"
        ]
    return _MODELS[node.url]


def complete(node: RunningNode, prompt: object = "hello", **fields: Any) -> httpx.Response:
    body = {
        "model": model_of(node),
        "prompt": prompt,
        "temperature": 0,
        "ignore_eos": True,
        **fields,
    }
    return HTTP.post(f"{node.url}/v1/completions", json=body)


def chat(node: RunningNode, content: object = "hello", **fields: Any) -> httpx.Response:
    messages = [{"role": "user", "content": content}]
    body = {
        "model": model_of(node),
        "messages": messages,
        "temperature": 0,
        "ignore_eos": True,
        "max_tokens": 8,
    }
    return HTTP.post(f"{node.url}/v1/chat/completions", json=body | fields)


def eventually(condition: Callable[[], Any], what: str, seconds: float = 15) -> None:
    """Poll until true, at most `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)


def used_blocks(snapshot: NodeSnapshot) -> int:
    assert isinstance(snapshot.kv, Known)
    return snapshot.kv.value.used_blocks


def in_flight(snapshot: NodeSnapshot) -> int:
    assert isinstance(snapshot.requests, Known)
    return len(snapshot.requests.value)


def eventually_idle(node: RunningNode) -> None:
    def idle() -> bool:
        snapshot = node.snapshot()
        return in_flight(snapshot) == 0 and used_blocks(snapshot) == 0

    eventually(idle, "no request in flight and no block held")


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error object; asserts the shape and the headers that go with it."""
    error = response.json()["error"]
    assert set(error) >= {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert response.headers["x-request-id"]
    if response.status_code in (429, 503):
        assert int(response.headers["retry-after"]) > 0
    return error  # type: ignore[no-any-return]

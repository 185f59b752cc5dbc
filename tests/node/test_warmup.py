"""Listed prefixes are hot before a node is ready, shared ones for all tenants, and warmed anew on demand."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from kvops.telemetry.snapshot import Known
from tests.harness import RunningNode, run_kvops, start_node
from tests.node.conftest import HTTP, KEYS, eventually

SYSTEM = "a node holds blocks of keys and values. " * 4
OWN = "0123456789 the lazy dog jumps over the quick brown fox. " * 3


@pytest.fixture(scope="module")
def warm_node(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    home = tmp_path_factory.mktemp("warm")
    keys, shared, own = home / "keys.yaml", home / "system.json", home / "own.txt"
    rows = [
        {"id": tenant, "tenant": tenant, "sha256": hashlib.sha256(key.encode()).hexdigest()}
        for tenant, key in KEYS.items()
    ]
    keys.write_text(yaml.safe_dump(rows))
    keys.chmod(0o600)
    shared.write_text(json.dumps([{"role": "system", "content": SYSTEM}]))
    own.write_text(OWN)
    settings: dict[str, object] = {
        "model": {"name": str(tiny_model)},
        "kv_cache": {"blocks": 128, "shared_prefixes": [str(shared)]},
        "runtime": {"threads": 1},
        "server": {"api_keys_file": str(keys)},
        "warmup": {"prefixes": {"alice": [str(own)]}},
    }
    node = start_node(home, settings, name="warm")
    yield node
    node.stop()


def ask(node: RunningNode, who: str, path: str, **fields: Any) -> int:
    """Prompt tokens found in the cache."""
    body = {"model": "tiny-llama", "temperature": 0, "max_tokens": 1, "ignore_eos": True} | fields
    headers = {"Authorization": f"Bearer {KEYS[who]}"}
    answer = HTTP.post(f"{node.url}/v1/{path}", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def chat(node: RunningNode, who: str, question: str) -> int:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    return ask(node, who, "chat/completions", messages=messages)


def cached_blocks(node: RunningNode) -> int:
    kv = node.snapshot().kv
    assert isinstance(kv, Known)
    return kv.value.cached_blocks


def test_hot_before_ready_for_whom_they_are(warm_node: RunningNode) -> None:
    prefix = cached_blocks(warm_node)
    assert prefix > 0
    cache = warm_node.snapshot().prefix_cache
    assert isinstance(cache, Known)
    assert cache.value.query_tokens == 0, "the node's own work is not counted"
    hit = {who: chat(warm_node, who, f"{who} asks") for who in KEYS}
    assert hit["alice"] == hit["bob"] >= 32, "a shared one is everybody's"
    assert ask(warm_node, "alice", "completions", prompt=OWN + "?") >= 32
    assert ask(warm_node, "bob", "completions", prompt=OWN + "?") == 0


def test_what_follows_a_shared_prefix_is_the_tenants_own(warm_node: RunningNode) -> None:
    question = "the quick brown fox jumps over the lazy dog. " * 3
    before = chat(warm_node, "alice", question)
    assert chat(warm_node, "alice", question) > before
    assert chat(warm_node, "bob", question) == before


def test_warm_again_after_a_flush_and_after_a_restart(warm_node: RunningNode) -> None:
    hot = warm_node.control("POST", "/control/warmup").json()
    assert hot["prefixes"] == 2
    assert hot["cached_tokens"] > 0.7 * hot["tokens"]
    warm_node.control("POST", "/control/flush")
    assert warm_node.control("POST", "/control/warmup").json() == hot | {"cached_tokens": 0}
    assert chat(warm_node, "bob", "again") >= 32
    (engine,) = psutil.Process(warm_node.process.pid).children()
    os.kill(engine.pid, signal.SIGKILL)
    eventually(lambda: warm_node.snapshot().state == "restarting", "the loss is seen")
    eventually(lambda: warm_node.snapshot().state == "ready", "ready again", 60)
    assert chat(warm_node, "bob", "after the restart") >= 32


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("missing.txt", None, "cannot read"),
        ("bad.json", '{"role": "system"}', "no list of chat messages"),
        ("empty.txt", "", "is empty"),
        ("long.txt", "9 8 7 6 5 " * 500, "exceed the limit"),
        ("special.json", '[{"role": "system", "content": "<|im_end|>"}]', "special token"),
    ],
)
def test_a_file_that_cannot_be_a_prefix_ends_the_start(
    name: str, content: str | None, words: str, tiny_model: Path, tmp_path: Path
) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_text(content)
    config = tmp_path / "node.yaml"
    settings = {
        "model": {"name": str(tiny_model)},
        "server": {"port": 0, "control_port": 0},
        "kv_cache": {"blocks": 64, "shared_prefixes": [str(file)]},
    }
    config.write_text(yaml.safe_dump(settings))
    result = run_kvops(
        "node", "start", "-c", str(config), env={"KVOPS_HOME": str(tmp_path / "home")}
    )
    assert result.returncode in (1, 2)
    assert words in result.stderr
    assert name in result.stderr
    assert "Traceback" not in result.stderr

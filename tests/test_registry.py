from __future__ import annotations

import os
import time

import psutil
import pytest

from kvops import registry
from kvops.errors import NodeNotFound, UsageError
from kvops.registry import NodeRecord
from kvops.telemetry import targets


def record(name: str, *, pid: int | None = None, pid_created: float | None = None) -> NodeRecord:
    me = psutil.Process(pid or os.getpid())
    return NodeRecord(
        name=name,
        pid=me.pid,
        pid_created=me.create_time() if pid_created is None else pid_created,
        url="http://127.0.0.1:1",
        control_url="http://127.0.0.1:2",
        model="m",
        started_at=time.time(),
        version="0",
    )


def test_a_record_lives_as_long_as_its_process() -> None:
    registry.write(record("here"))
    registry.write(record("reused-pid", pid_created=1.0))
    assert [r.name for r in registry.running()] == ["here"]
    registry.remove("here")
    assert registry.running() == []


def test_the_only_node_is_the_default_target() -> None:
    with pytest.raises(NodeNotFound, match="no node runs"):
        targets.resolve()
    registry.write(record("one"))
    registry.token_file("one").write_text("secret\n")
    assert targets.resolve().token == "secret"
    registry.write(record("two"))
    with pytest.raises(UsageError, match="one, two"):
        targets.resolve()
    assert targets.resolve("two").name == "two"


def test_a_damaged_record_is_no_node() -> None:
    registry.write(record("one"))
    (registry.node_dir("one") / "node.json").write_text("{")
    assert registry.running() == []


@pytest.mark.parametrize("name", ["", "../x", "A", "a/b", ".hidden", "x" * 64])
def test_a_name_is_a_plain_file_name(name: str) -> None:
    with pytest.raises(UsageError, match="not valid"):
        registry.node_dir(name)


def test_a_url_is_a_target_with_the_callers_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVOPS_API_KEY", "key")
    target = targets.resolve("http://127.0.0.1:8000/")
    assert (target.name, target.url, target.api_key) == (
        "127.0.0.1:8000",
        "http://127.0.0.1:8000",
        "key",
    )
    with pytest.raises(UsageError, match="http"):
        targets.resolve("ftp://x")
    monkeypatch.setenv("KVOPS_API_KEY_FILE", "/nowhere")
    with pytest.raises(UsageError, match="both"):
        targets.resolve("http://127.0.0.1:8000")

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


def test_how_the_last_node_failed_is_told() -> None:
    assert registry.last_failure() == ""
    log = registry.log_file("chat")
    log.parent.mkdir(parents=True)
    ready = '{"event": "ready", "timestamp": "2026-01-01T00:00:00.1Z"}\n'
    failed = '{"event": "failed", "timestamp": "2026-01-02T03:04:05.6Z", "error": "engine_died"}\n'
    log.write_text(ready + failed + '{"event": "cut sho')
    told = "chat: failed 2026-01-02T03:04:05Z, engine_died; kvops node logs --node chat"
    with pytest.raises(NodeNotFound) as nothing:
        registry.the_only_one()
    assert nothing.value.hint.startswith(told)
    registry.write(record("chat"))
    assert registry.last_failure() == "", "it runs again"
    registry.write(record("chat", pid_created=1.0))
    log.write_text(failed + ready)
    assert registry.last_failure() == "chat: killed; kvops node logs --node chat"
    registry.remove("chat")
    assert registry.last_failure() == "", "it ended well"


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


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://127.0.0.1:1/", "http://localhost:1"])
def test_a_url_of_a_local_node_is_that_node(url: str) -> None:
    registry.write(record("one"))
    registry.token_file("one").write_text("secret\n")
    target = targets.resolve(url)
    assert (target.name, target.control_url, target.token) == (
        "one",
        "http://127.0.0.1:2",
        "secret",
    )
    assert targets.resolve("http://127.0.0.1:3").control_url is None


def test_a_local_token_goes_to_no_other_control_plane() -> None:
    registry.write(record("one"))
    registry.token_file("one").write_text("secret\n")
    elsewhere = targets.resolve("http://127.0.0.1:1", control_url="http://127.0.0.1:9")
    assert (elsewhere.control_url, elsewhere.token) == ("http://127.0.0.1:9", None)
    with pytest.raises(UsageError, match="--control-url"):
        targets.resolve("one", control_url="http://127.0.0.1:9")


@pytest.mark.parametrize(
    "text", ["127.0.0.1:8000", "localhost:8000", "gpu.lan:80/v1", "[::1]:8000"]
)
def test_an_address_without_its_scheme_is_told_so(text: str) -> None:
    for ask in (targets.resolve, targets.check):
        with pytest.raises(UsageError) as caught:
            ask(text)
        assert f"http://{text}" in caught.value.hint


@pytest.mark.parametrize("text", ["http://h:99999", "http://", "http://[::1", "ftp://h"])
def test_what_is_no_url_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="URL"):
        targets.check(text)


def test_a_name_that_can_be_none_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="not valid"):
        targets.resolve("../x")
    with pytest.raises(NodeNotFound, match="nobody"):
        targets.resolve("nobody")

"""New settings for a node that runs: all or nothing, requests in flight keep theirs, and one command back."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from kvops.config.history import History
from kvops.telemetry.snapshot import Known, TenantUsage
from tests.harness import RunningNode, start_node
from tests.node.conftest import (
    HTTP,
    KEYS,
    error_of,
    eventually,
    eventually_idle,
    keys_file,
)

PROMPT = [5] * 40


@pytest.fixture(scope="module")
def node(long_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    home = tmp_path_factory.mktemp("reload")
    keys = keys_file(home, KEYS)
    settings: dict[str, object] = {
        "model": {"name": str(long_model)},
        "kv_cache": {"blocks": 1024},
        "runtime": {"threads": 1},
        "server": {"api_keys_file": str(keys)},
    }
    node = start_node(home, settings, name="reload")
    yield node
    assert node.stop() == 0


@pytest.fixture
def document(node: RunningNode) -> Iterator[dict[str, Any]]:
    """What the node started with, to be changed; in force again after the test."""
    text = (node.home / "reload.yaml").read_text()
    yield yaml.safe_load(text)
    assert reload(node, yaml.safe_load(text)).status_code == 200


def reload(node: RunningNode, document: dict[str, Any], **fields: Any) -> httpx.Response:
    body = {"document": document, "author": "tester"} | fields
    return node.control("POST", "/control/reload", json=body)


def ask(node: RunningNode, who: str = "alice", **fields: Any) -> httpx.Response:
    body = {"model": "long-llama", "prompt": "hello", "temperature": 0, "max_tokens": 4}
    headers = {"Authorization": f"Bearer kvk_{who}_secret"}
    return HTTP.post(
        f"{node.url}/v1/completions", json=body | {"ignore_eos": True} | fields, headers=headers
    )


def config(node: RunningNode) -> dict[str, Any]:
    told: dict[str, Any] = node.control("GET", "/control/config").json()
    return told


def usage_of(node: RunningNode, tenant: str) -> TenantUsage:
    tenants = node.snapshot().tenants
    assert isinstance(tenants, Known)
    return next(one for one in tenants.value if one.tenant == tenant)


def test_what_can_change_live_does_and_the_rest_is_named(
    node: RunningNode, document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = config(node)
    assert ask(node, n=8).status_code == 200
    document |= {"limits": {"n": 2, "body_bytes": "2KiB"}, "logging": {"level": "debug"}}
    document |= {"tenants": {"alice": {"kv_quota": 4}}}
    document["runtime"] |= {"over_length": "truncate_head", "max_batch_size": 3}
    answer = reload(node, document, note="tighter").json()
    assert [row["key"] for row in answer["live"]] == [
        "runtime.over_length", "tenants.alice.kv_quota.blocks", "limits.body_bytes", "limits.n",
        "logging.level",
    ]  # fmt: skip
    assert answer["restart_needed"] == [{"key": "runtime.max_batch_size", "before": 32, "after": 3}]
    assert error_of(ask(node, n=8))["param"] == "n"
    assert ask(node, prompt="x" * 3000).status_code == 413
    cut = ask(node, prompt=PROMPT, max_tokens=30)
    assert (cut.status_code, cut.headers["x-kvops-truncated"]) == (200, "6")
    after = config(node)
    assert after["config"]["limits"]["n"] == 2
    assert after["config"]["runtime"]["max_batch_size"] == 32
    assert after["origins"]["limits.n"] == f"reload v{answer['version']}"
    assert after["restart_needed"] == answer["restart_needed"]
    assert (answer["before"], answer["after"]) == (before["config_hash"], after["config_hash"])
    assert node.snapshot().config_hash.value == after["config_hash"]  # type: ignore[union-attr]
    monkeypatch.setenv("KVOPS_HOME", str(node.home))
    version = History.of("reload").version(answer["version"])
    assert (version.author, version.note, version.good) == ("tester", "tighter", False)


def test_one_fault_and_nothing_changes(node: RunningNode, document: dict[str, Any]) -> None:
    before = config(node)
    document |= {"limits": {"n": 2}, "tenants": {"alice": {"max_runing": 1}}}
    document["runtime"] |= {"max_queue": -1}
    refused = reload(node, document)
    assert refused.status_code == 400
    said = error_of(refused)["message"]
    for words in ("nothing has changed", "runtime.max_queue = -1 (reload)", "did you mean max_run"):
        assert words in said
    assert config(node) == before
    assert ask(node, n=8).status_code == 200


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tenants": {"alice": {"kv_quota": "1"}, "bob": {"kv_quota": "0.0001%"}}}, "tenants.bob"),
        ({"name": "another"}, "another node"),
        ({"server": {"api_keys_file": "/nowhere"}}, "kvops keys create --file /nowhere"),
        ({"alerts": {"rules_file": "/nowhere"}}, "/nowhere"),
        ({"nonsense": {}}, "nonsense"),
    ],
)
def test_what_only_the_node_can_tell_is_refused_as_well(
    node: RunningNode, document: dict[str, Any], change: dict[str, Any], words: str
) -> None:
    before = config(node)
    refused = reload(node, document | {"limits": {"n": 2}} | change)
    assert (refused.status_code, error_of(refused)["code"]) == (400, "invalid_request")
    assert words in error_of(refused)["message"]
    assert config(node) == before


@pytest.mark.parametrize(
    "body", [{}, {"document": {}}, {"document": [], "author": "x"}, {"document": {}, "author": ""}]
)
def test_a_body_that_is_none(node: RunningNode, body: dict[str, Any]) -> None:
    assert node.control("POST", "/control/reload", json=body).status_code == 400


def test_a_version_that_cannot_be_stored_is_not_in_force(
    node: RunningNode, document: dict[str, Any]
) -> None:
    before = config(node)
    versions = node.home / "state" / "nodes" / "reload" / "config" / "versions"
    aside = versions.rename(versions.with_name("aside"))
    versions.touch()
    try:
        refused = reload(node, document | {"limits": {"n": 2}})
    finally:
        versions.unlink()
        aside.rename(versions)
    assert (refused.status_code, error_of(refused)["code"]) == (507, "not_stored")
    assert config(node) == before


def test_quotas_hold_for_new_requests_and_those_in_flight_keep_theirs(
    node: RunningNode, document: dict[str, Any]
) -> None:
    body = {
        "model": "long-llama", "prompt": PROMPT, "temperature": 0, "ignore_eos": True,
        "max_tokens": 5000, "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    headers = {"Authorization": "Bearer kvk_alice_secret"}
    url = f"{node.url}/v1/completions"
    with HTTP.stream("POST", url, json=body, headers=headers, timeout=120) as stream:
        lines = stream.iter_lines()
        assert next(lines).startswith("data:")
        tenants = {"alice": {"kv_quota": 4, "max_running": 1}, "bob": {"class": "batch"}}
        answer = reload(node, document | {"tenants": tenants})
        assert answer.json()["restart_needed"] == []
        usage = usage_of(node, "alice")
        assert (usage.kv_quota_blocks, usage.running) == (4, 1)
        over = ask(node, prompt=PROMPT, max_tokens=25)
        assert (over.status_code, error_of(over)["code"]) == (429, "kv_quota")
        assert error_of(ask(node, "bob", priority="online"))["param"] == "priority"
        rest = [line for line in lines if line.startswith("data:")]
    assert '"completion_tokens":5000' in rest[-2].replace(" ", "")
    assert ask(node, prompt=PROMPT, max_tokens=24).status_code == 200
    eventually_idle(node)
    progress = node.snapshot().progress
    assert isinstance(progress, Known)
    assert progress.value.invariant_violations == 0


def test_an_engine_that_comes_after_has_the_new_tenants(
    node: RunningNode, document: dict[str, Any]
) -> None:
    reload(node, document | {"tenants": {"alice": {"kv_quota": 4}}})
    restarts = node.snapshot().progress
    assert isinstance(restarts, Known)
    node.engine().send_signal(signal.SIGKILL)

    def restarted() -> bool:
        now = node.snapshot()
        more = isinstance(now.progress, Known) and (
            now.progress.value.engine_restarts > restarts.value.engine_restarts
        )
        return more and now.state == "ready"

    eventually(restarted, "a new engine is ready", 90)
    assert usage_of(node, "alice").kv_quota_blocks == 4
    refused = ask(node, prompt=PROMPT, max_tokens=25)
    assert (refused.status_code, error_of(refused)["code"]) == (429, "kv_quota")


def test_one_command_back(node: RunningNode, document: dict[str, Any]) -> None:
    start = reload(node, document).json()
    two = reload(node, document | {"limits": {"n": 2}}).json()
    three = reload(node, document | {"limits": {"n": 3}}).json()
    back = node.control("POST", "/control/rollback", json={"author": "tester"}).json()
    assert (back["after"], config(node)["config"]["limits"]["n"]) == (two["after"], 2)
    again = node.control("POST", "/control/rollback", json={"author": "tester"}).json()
    assert again["after"] == start["after"]
    named = {"author": "tester", "version": three["version"]}
    assert node.control("POST", "/control/rollback", json=named).json()["after"] == three["after"]
    gone = {"author": "tester", "version": 9999}
    assert (
        error_of(node.control("POST", "/control/rollback", json=gone))["code"] == "invalid_request"
    )


def test_reloads_at_once_are_one_after_another(node: RunningNode, document: dict[str, Any]) -> None:
    answers: list[dict[str, Any]] = []

    def go(n: int) -> None:
        answers.append(reload(node, document | {"limits": {"n": n}}).json())

    threads = [threading.Thread(target=go, args=(n,)) for n in range(2, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answers.sort(key=lambda answer: answer["version"])
    assert len({answer["version"] for answer in answers}) == 6
    assert [a["before"] for a in answers[1:]] == [a["after"] for a in answers[:-1]]
    assert config(node)["config_hash"] == answers[-1]["after"]

"""`kvops config` as an operator uses it, with a node that runs and with none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import yaml

from kvops.config.history import user
from tests.harness import RunningNode, run_kvops, start_node


@pytest.fixture(scope="module")
def node(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    settings = {
        "model": {"name": str(tiny_model)},
        "kv_cache": {"blocks": 128},
        "runtime": {"threads": 1},
    }
    node = start_node(tmp_path_factory.mktemp("config"), settings, name="served")
    yield node
    node.stop()


def told(done: CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_a_day_with_a_node(node: RunningNode, tmp_path: Path) -> None:
    settings = yaml.safe_load((node.home / "served.yaml").read_text())
    file = tmp_path / "new.yaml"
    file.write_text(
        yaml.safe_dump(settings | {"limits": {"n": 3}, "tenants": {"a": {"class": "batch"}}})
    )
    (first,) = told(node.kvops("config", "history", "--json"))
    assert (first["id"], first["good"], first["current"]) == (1, True, True)
    assert first["author"] == user()

    (changed, tenant) = told(node.kvops("config", "diff", "running", str(file), "--json"))
    assert tenant == {"key": "limits.n", "before": 16, "after": 3, "live": True}
    assert changed["key"] == "tenants.a.class"
    applied = node.kvops("config", "apply", str(file), "--note", "fewer")
    assert applied.returncode == 0, applied.stderr
    assert f"served: v2, {first['config_hash']} → " in applied.stdout
    assert "in force        limits.n: 16 → 3" in applied.stdout

    shown = node.kvops("config", "show", "--origin").stdout
    assert any(
        line.split() == ["limits.n:", "3", "#", "reload", "v2"] for line in shown.splitlines()
    ), shown
    assert told(node.kvops("config", "show", "--json"))["version"] == 2
    table = node.kvops("config", "history").stdout
    assert "current, good" in table
    assert "fewer" in table

    back = told(node.kvops("config", "rollback", "--json"))
    assert (back["version"], back["after"]) == (3, first["config_hash"])
    assert node.kvops("config", "diff", "v1", "v3").stdout == "no difference\n"
    assert "limits.n: 3 → 16" in node.kvops("config", "diff", "2", "running").stdout


def test_a_pending_restart_is_told(node: RunningNode, tmp_path: Path) -> None:
    """One hash names a version everywhere; what is in force is named where it is another."""
    settings = yaml.safe_load((node.home / "served.yaml").read_text())
    file = tmp_path / "later.yaml"
    settings["kv_cache"] = {"blocks": 64}
    file.write_text(yaml.safe_dump(settings))
    previous = told(node.kvops("config", "history", "--json"))[0]
    applied = node.kvops("config", "apply", str(file)).stdout
    newest = told(node.kvops("config", "history", "--json"))[0]
    hashes = f"{previous['config_hash']} → {newest['config_hash']}"
    assert f"served: v{newest['id']}, {hashes}\n  restart pending: in force is " in applied
    assert newest["restart_pending"]
    assert "current, restart pending" in node.kvops("config", "history").stdout
    shown = node.kvops("config", "show").stdout
    assert f"version {newest['id']} ({newest['config_hash']}, restart pending)" in shown
    assert "served: its next start changes kv_cache.blocks" in node.kvops("node", "status").stdout
    assert told(node.kvops("config", "rollback", "--json"))["restart_needed"] == []
    assert "next start" not in node.kvops("node", "status").stdout
    assert not told(node.kvops("config", "history", "--json"))[0]["restart_pending"]


def test_a_wrong_file_changes_nothing(node: RunningNode, tmp_path: Path) -> None:
    before = told(node.kvops("config", "history", "--json"))
    file = tmp_path / "wrong.yaml"
    file.write_text("limits: {n: 0}\ntenants: {a: {max_runing: 1}}\nserver: {prot: 1}")
    refused = node.kvops("config", "apply", str(file), "--node", "served")
    assert refused.returncode == 2
    for words in ("limits.n = 0", "max_running?", "server.port?", str(file)):
        assert words in refused.stderr
    file.write_text("tenants: {a: {kv_quota: 0.0001%}}")
    refused = node.kvops("config", "apply", str(file), "--node", "served")
    assert refused.returncode != 0
    assert "less than one block" in refused.stderr
    back = node.kvops("config", "rollback", "v99")
    assert back.returncode == 1
    assert "error [invalid_request]: nothing has changed: there is no version 99." in back.stderr
    assert "next: kvops config history: v1 to v" in back.stderr
    assert told(node.kvops("config", "history", "--json")) == before


def test_before_a_node_ever_runs(kvops_home: Path, tmp_path: Path) -> None:
    """What is applied waits for the start, and where it is is said."""

    def kvops(*args: str) -> CompletedProcess[str]:
        return run_kvops("config", *args, env={"KVOPS_HOME": str(kvops_home)})

    file = tmp_path / "a.yaml"
    file.write_text("name: later\nlimits: {n: 2}\nkv_cache: {shared_prefixes: [x.txt]}")
    assert "no versions yet" in kvops("history", "--node", "later").stdout
    applied = kvops("apply", str(file))
    assert applied.returncode == 0, applied.stderr
    current = kvops_home / "state" / "nodes" / "later" / "config" / "current.json"
    assert f"next: kvops node start -c {current}" in applied.stdout
    assert yaml.safe_load(current.read_text())["kv_cache"] == {
        "shared_prefixes": [str(tmp_path / "x.txt")]
    }
    shown = told(kvops("show", "-c", str(current), "--json"))
    assert shown["config"]["limits"]["n"] == 2
    file.write_text("name: later\nlimits: {n: 5}")
    assert told(kvops("apply", str(file), "--json"))["restart_needed"][-1]["after"] == 5
    assert kvops("rollback", "--node", "later").returncode == 2, "none of them was ever good"
    back = told(kvops("rollback", "v1", "--node", "later", "--json"))
    assert (back["version"], back["running"]) == (3, False)
    assert kvops("apply", str(file), "--node", "other").returncode == 2
    for wrong in (("rollback", "x"), ("diff", "running", "v1"), ("diff", "v1", "nowhere.yaml")):
        done = kvops(*wrong, "--node", "later")
        assert done.returncode == 2, done.stdout + done.stderr


def test_check_looks_at_the_machine_too(tiny_model: Path, kvops_home: Path, tmp_path: Path) -> None:
    file = tmp_path / "node.yaml"
    file.write_text(
        f"model: {{name: {tiny_model}}}\nserver: {{port: 0, control_port: 0}}\nkv_cache: {{bytes: 64TiB}}"
    )
    done = run_kvops("config", "check", str(file), env={"KVOPS_HOME": str(kvops_home)})
    assert done.returncode == 1
    assert "fail  memory" in done.stdout
    file.write_text("limits: {n: 0, nn: 1}")
    done = run_kvops("config", "check", str(file), env={"KVOPS_HOME": str(kvops_home)})
    assert done.returncode == 2
    assert "2 settings are not valid" in done.stderr


def test_credentials_in_a_url_are_covered() -> None:
    from kvops.config.masking import masked

    value = {"a": ["https://me:secret@host/x?token=secret#f", "plain"], "b": 3, "c": "tgram://t@x"}
    shown = masked(value)
    assert shown == {
        "a": ["https://******@host/x?******#f", "plain"], "b": 3, "c": "tgram://******@x",
    }  # fmt: skip

"""Settings while there is no engine: who goes back may do so because it dies of those in force."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from kvops import failpoints, registry
from tests.harness import RunningNode, start_node
from tests.node.conftest import HTTP, eventually


def versions(node: RunningNode) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(node.kvops("config", "history", "--json").stdout)
    return found


def test_go_back_and_apply_while_the_engine_is_replaced(tiny_model: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "model": {"name": str(tiny_model)},
        "kv_cache": {"blocks": 64},
        "runtime": {"threads": 1},
        "restart": {"backoff": "8s"},
        "server": {"port": 0, "control_port": 0},
    }
    node = start_node(tmp_path, settings, name="down")
    file = tmp_path / "new.yaml"
    try:
        file.write_text(yaml.safe_dump(settings | {"name": "down", "limits": {"n": 2}}))
        assert node.kvops("config", "apply", str(file)).returncode == 0
        node.engine().kill()
        eventually(lambda: node.snapshot().state == "restarting", "restarting", 20)
        back = node.kvops("config", "rollback")
        assert (back.returncode, back.stderr) == (0, "")
        assert "in force        limits.n: 2 → 16" in back.stdout
        file.write_text(
            yaml.safe_dump(settings | {"name": "down", "tenants": {"a": {"kv_quota": 9}}})
        )
        assert node.kvops("config", "apply", str(file)).returncode == 0
        file.write_text(yaml.safe_dump({"name": "down", "tenants": {"a": {"kv_quota": "0.001%"}}}))
        assert "less than one block" in node.kvops("config", "apply", str(file)).stderr
        assert node.snapshot().state == "restarting", "all of it was while there was no engine"
        told = versions(node)
        assert [one["good"] for one in told] == [False, False, True, True]
        eventually(lambda: node.snapshot().state == "ready", "a new engine serves", 60)
        eventually(lambda: versions(node)[0]["good"], "it served with all of it", 20)
        assert not versions(node)[1]["good"]
        assert HTTP.get(f"{node.url}/readyz").status_code == 200
    finally:
        assert node.stop() == 0


@pytest.fixture
def loading(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A node whose first engine does not come up."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "loads.yaml").write_text(
        yaml.safe_dump(
            {
                "name": "loads",
                "server": {"port": 0, "control_port": 0},
                "model": {"name": str(tiny_model)},
                "kv_cache": {"blocks": 64},
                "runtime": {"threads": 1},
            }
        )
    )
    monkeypatch.setenv("KVOPS_HOME", str(home))
    monkeypatch.setenv(failpoints.VARIABLE, "engine.step.hangs@1")
    process = subprocess.Popen(
        [sys.executable, "-m", "kvops.cli", "node", "start", "-c", str(home / "loads.yaml")],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    monkeypatch.delenv(failpoints.VARIABLE)
    yield home
    process.terminate()
    process.wait(30)


def told(path: str, **body: Any) -> httpx.Response:
    record = registry.read("loads")
    assert record is not None
    headers = {"Authorization": f"Bearer {registry.token_file('loads').read_text().strip()}"}
    return HTTP.post(record.control_url + path, json=body | {"author": "a"}, headers=headers)


def test_while_the_first_engine_loads(loading: Path) -> None:
    def up() -> bool:
        try:
            return told("/control/reload", document={"limits": {"n": 3}}).status_code == 200
        except (AssertionError, OSError, httpx.HTTPError):
            return False

    eventually(up, "settings are taken before the node is ready", 60)
    refused = told("/control/reload", document={"tenants": {"a": {"kv_quota": 3}}})
    assert refused.status_code == 400
    assert "when the node is ready" in refused.json()["error"]["message"]
    assert told("/control/rollback", version=1).json()["live"] == [
        {"key": "limits.n", "before": 3, "after": 16}
    ]

"""Starting a node from the command line: the report, what stops it, and running it behind."""

from __future__ import annotations

import json
import socket
import stat
from pathlib import Path

import pytest
import yaml

from kvops import registry
from tests.harness import run_kvops
from tests.node.conftest import HTTP


def test_detach_reports_and_stop_ends_it(tiny_model: Path, kvops_home: Path) -> None:
    env = {"KVOPS_HOME": str(kvops_home)}
    ports = ("--port", "0", "--control-port", "0")
    started = run_kvops(
        "node", "start", "--detach", "--model", str(tiny_model), "--name", "behind", *ports, env=env
    )
    try:
        assert started.returncode == 0, started.stdout + started.stderr
        steps = (
            "checks",
            "model loaded",
            "pool initialised",
            "data plane",
            "control plane",
            "ready",
            "stop",
        )
        assert all(step in started.stdout for step in steps), started.stdout
        record = registry.read("behind")
        assert record is not None
        assert HTTP.get(f"{record.url}/readyz").status_code == 200
        again = run_kvops(
            "node", "start", "--model", str(tiny_model), "--name", "behind", *ports, env=env
        )
        assert again.returncode == 1
        assert "runs already" in again.stderr
        (row,) = json.loads(run_kvops("node", "status", "--json", env=env).stdout)
        assert row["state"] == "ready"
        private = [
            registry.node_dir("behind"),
            registry.token_file("behind"),
            registry.log_file("behind"),
        ]
        assert [stat.S_IMODE(path.stat().st_mode) for path in private] == [0o700, 0o600, 0o600]
    finally:
        stopped = run_kvops("node", "stop", env=env)
    assert stopped.returncode == 0, stopped.stderr
    assert run_kvops("node", "status", env=env).returncode == 4
    assert run_kvops("node", "drain", env=env).returncode == 4


def test_a_port_in_use_is_named(tiny_model: Path, kvops_home: Path) -> None:
    env = {"KVOPS_HOME": str(kvops_home)}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = run_kvops("node", "start", "--model", str(tiny_model), "--port", port, env=env)
    assert result.returncode == 1
    assert port in result.stderr
    assert "--port" in result.stderr


def test_a_model_that_is_not_there(kvops_home: Path) -> None:
    result = run_kvops(
        "node", "start", "--detach", "--model", "nothing", env={"KVOPS_HOME": str(kvops_home)}
    )
    assert result.returncode == 1
    assert "kvops model pull nothing" in result.stdout + result.stderr


def test_a_model_that_cannot_be_loaded_ends_the_node(
    tiny_model: Path, tmp_path: Path, kvops_home: Path
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in tiny_model.iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    ports = ("--port", "0", "--control-port", "0")
    result = run_kvops(
        "node", "start", "--model", str(broken), *ports, env={"KVOPS_HOME": str(kvops_home)}
    )
    assert result.returncode == 1
    assert "error [model" in result.stderr or "model.safetensors" in result.stderr, result.stderr
    assert "Traceback" not in result.stderr
    assert registry.running() == []


@pytest.mark.parametrize(
    ("setting", "lower"),
    [({"blocks": 2**24}, "kv_cache.blocks"), ({"bytes": "900TiB"}, "kv_cache.bytes")],
)
def test_what_does_not_fit_into_memory_is_refused_before_it_is_loaded(
    setting: dict[str, object], lower: str, tiny_model: Path, tmp_path: Path, kvops_home: Path
) -> None:
    config = tmp_path / "node.yaml"
    servers = {"port": 0, "control_port": 0}
    settings = {"server": servers, "model": {"name": str(tiny_model)}, "kv_cache": setting}
    config.write_text(yaml.safe_dump(settings))
    result = run_kvops("node", "start", "-c", str(config), env={"KVOPS_HOME": str(kvops_home)})
    assert result.returncode == 1
    assert "model loaded" not in result.stdout
    for word in ("weights", "pool", "free", lower):
        assert word in result.stderr, result.stderr
    assert "Traceback" not in result.stderr
    assert registry.running() == []


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("tenants: {acme: {clas: batch}}", "tenants.acme.clas"),
        ("tenants: {acme: {kv_quota: lots}}", "tenants.acme.kv_quota"),
        ("tenants: {acme: {kv_quota: 150%}}", "tenants.acme.kv_quota"),
        ("tenant_defaults: {max_running: 0}", "tenant_defaults.max_running"),
        ("runtime: {batch_admission: {max_online_running: 0}}", "max_online_running"),
        ("runtime: {result_store: {bytes: 5}}", "runtime.result_store.bytes"),
    ],
)
def test_a_bad_limit_is_named(text: str, named: str, tmp_path: Path, kvops_home: Path) -> None:
    config = tmp_path / "node.yaml"
    config.write_text(text)
    result = run_kvops("node", "start", "-c", str(config), env={"KVOPS_HOME": str(kvops_home)})
    assert result.returncode == 2
    assert named in result.stderr


def test_a_quota_of_no_block_is_refused(tiny_model: Path, tmp_path: Path, kvops_home: Path) -> None:
    config = tmp_path / "node.yaml"
    settings = {
        "server": {"port": 0, "control_port": 0},
        "model": {"name": str(tiny_model)},
        "kv_cache": {"blocks": 16},
        "tenants": {"acme": {"kv_quota": "1%"}},
    }
    config.write_text(yaml.safe_dump(settings))
    result = run_kvops("node", "start", "-c", str(config), env={"KVOPS_HOME": str(kvops_home)})
    assert result.returncode == 1
    assert "tenants.acme: kv_quota is less than one block" in result.stderr


def test_a_bad_setting_is_a_usage_error(tmp_path: Path, kvops_home: Path) -> None:
    config = tmp_path / "node.yaml"
    config.write_text("server: {prot: 1}")
    result = run_kvops("node", "start", "-c", str(config), env={"KVOPS_HOME": str(kvops_home)})
    assert result.returncode == 2
    assert "server.port" in result.stderr


@pytest.mark.parametrize("command", ["stop", "drain", "resume", "status"])
def test_without_a_node(command: str, kvops_home: Path) -> None:
    assert run_kvops("node", command, env={"KVOPS_HOME": str(kvops_home)}).returncode == 4

"""Starting a node from the command line: the report, what stops it, and running it behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from kvops import paths, registry
from kvops.errors import (
    ConfigError,
    EngineDied,
    KvopsError,
    ModelCorrupt,
    NodeStartError,
    RequestError,
    from_code,
)
from tests.harness import KVOPS, RunningNode, run_kvops, start_node
from tests.node.conftest import HTTP, eventually


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
    assert "no model 'nothing'" in result.stderr
    assert result.stderr.count("next: ") == 1


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
    status = run_kvops("node", "status", env={"KVOPS_HOME": str(kvops_home)})
    assert status.returncode == 4
    assert "next: node: failed 20" in status.stderr
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
    for word in ("weights", "KV pool", "activations", "that are free", lower):
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
    assert result.returncode == 2
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


PORTS = ("--port", "0", "--control-port", "0")


@pytest.fixture
def pulled(tiny_model: Path, kvops_home: Path) -> str:
    done = run_kvops("model", "pull", str(tiny_model), env={"KVOPS_HOME": str(kvops_home)})
    assert done.returncode == 0, done.stderr
    return "tiny-llama"


def start(
    home: Path, *args: str, settings: dict[str, object] | None = None
) -> subprocess.CompletedProcess[str]:
    config = home / "node.yaml"
    home.mkdir(parents=True, exist_ok=True)
    config.write_text(yaml.safe_dump(settings or {}))
    env = {"KVOPS_HOME": str(home)}
    return run_kvops("node", "start", "-c", str(config), *PORTS, *args, env=env)


def test_a_pulled_model_that_was_changed_is_never_ready(pulled: str, kvops_home: Path) -> None:
    weights = paths.models_dir() / pulled / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    result = start(kvops_home, "--model", pulled)
    assert result.returncode == 1
    assert "error [model_corrupt]" in result.stderr
    assert "model.safetensors was changed" in result.stderr
    assert f"kvops model remove {pulled}, then kvops model pull" in result.stderr
    assert "ready" not in result.stdout
    logged = run_kvops("node", "logs", env={"KVOPS_HOME": str(kvops_home)})
    assert "the last that ran here is node" in logged.stderr
    assert "model.safetensors was changed" in logged.stdout


def test_the_start_report_says_what_was_verified_and_what_bounds_the_context(
    pulled: str, tiny_model: Path, kvops_home: Path
) -> None:
    small: dict[str, object] = {"model": {"name": pulled}, "kv_cache": {"blocks": 8}}
    node = start_node(kvops_home, small, name="small")
    try:
        eventually(lambda: " ready " in node.log.read_text(), "the report is whole", 60)
        report = node.log.read_text()
        assert "model verified     SHA-256 as pulled" in report
        assert "128 tokens: the pool holds no more (the model's: 512)" in report
        assert "Ctrl-C" not in report, "there is no terminal to press it on"
        assert report.index("model verified") < report.index(" ready ")
    finally:
        assert node.stop() == 0


@pytest.mark.parametrize("detach", [(), ("--detach",)])
@pytest.mark.parametrize(
    ("settings", "code", "words"),
    [
        ({"runtime": {"device": "tpu"}}, 2, "runtime.device = 'tpu'"),
        ({"model": {"max_context_length": 99999}}, 2, "was trained for 512 tokens"),
        ({"kv_cache": {"bytes": "9000GiB"}}, 1, "+ KV pool"),
        ({"kv_cache": {"bytes": 10}}, 2, "kv_cache.bytes = 10 B: the pool holds 0 blocks"),
        (
            {"kv_cache": {"blocks": 4}, "model": {"max_context_length": 100}},
            2,
            "model.max_context_length = 100: the pool (kv_cache.blocks = 4) holds 64 tokens",
        ),
    ],
)
def test_what_cannot_start_ends_with_one_error_and_its_own_code(
    tiny_model: Path,
    kvops_home: Path,
    settings: dict[str, object],
    code: int,
    words: str,
    detach: tuple[str, ...],
) -> None:
    result = start(kvops_home, *detach, "--model", str(tiny_model), settings=settings)
    assert result.returncode == code, result.stderr
    assert words in result.stderr
    assert result.stderr.count("error [") == 1
    assert result.stderr.count("next: ") == 1
    assert "[config] " not in result.stderr
    assert "data plane" not in result.stdout, "a port was bound"


@pytest.fixture
def first(tiny_model: Path, kvops_home: Path) -> Iterator[RunningNode]:
    settings: dict[str, object] = {"model": {"name": str(tiny_model)}, "kv_cache": {"blocks": 8}}
    node = start_node(kvops_home, settings, name="first")
    yield node
    node.stop()


def test_beside_a_running_node(first: RunningNode, tiny_model: Path) -> None:
    model = ("--model", str(tiny_model))
    port = first.url.rpartition(":")[2]
    taken = first.kvops("node", "start", *model, "--name", "second", "--port", port)
    assert "is that of the kvops node 'first'" in taken.stderr
    same = first.kvops("node", "start", *model, "--name", "first")
    assert "--name first-2 --port 0 --control-port 0" in same.stderr
    assert "--port 0 --control-port 0" in taken.stderr
    drained = first.kvops("node", "drain")
    assert "kvops node resume --node first" in drained.stdout
    for command in ("status", "stop", "drain"):
        other = first.kvops("node", command, "--node", "third")
        assert other.returncode == 4
        assert "next: those that run: first" in other.stderr


def interrupt_while_loading(*args: str, home: Path, model: Path, stop: str) -> tuple[int, str]:
    """Ctrl-C as soon as the report shows `stop`; exit code and all that was printed."""
    command = [*KVOPS, "node", "start", "--model", str(model), *PORTS, *args]
    process = subprocess.Popen(
        command, env=os.environ | {"KVOPS_HOME": str(home), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        if stop in line:
            process.send_signal(signal.SIGINT)
            stop = "\0"
    return process.wait(30), text


def test_ctrl_c_while_it_loads_is_answered(tiny_model: Path, kvops_home: Path) -> None:
    code, text = interrupt_while_loading(home=kvops_home, model=tiny_model, stop="control plane")
    assert code == 0, text
    assert text.index("stopping") < text.index("stopped")
    assert " ready " not in text


def test_ctrl_c_leaves_no_node_behind(tiny_model: Path, kvops_home: Path) -> None:
    code, text = interrupt_while_loading(
        "--detach", home=kvops_home, model=tiny_model, stop="data plane"
    )
    assert code == 130, text
    assert "stopping node, which was still starting" in text
    assert registry.running() == []


@pytest.mark.parametrize("kind", [ConfigError, ModelCorrupt, NodeStartError, EngineDied])
def test_an_error_crosses_the_process_as_what_it_is(kind: type[KvopsError]) -> None:
    error = from_code(kind.code, "what", "then")
    assert type(error) is kind
    assert (error.message, error.hint) == ("what", "then")


def test_a_code_that_is_none_or_a_clients_is_no_error_of_a_start() -> None:
    assert from_code("nonsense", "", "") is None
    assert from_code(RequestError.__subclasses__()[0].code, "", "") is None

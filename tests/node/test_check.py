"""What is looked at before a start: each fault with its remedy, by the same list for `node check` and for the start."""

from __future__ import annotations

import json
import os
import re
import resource
import socket
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from kvops import paths, registry
from kvops.config.schema import NodeConfig
from kvops.errors import ConfigError, KvopsError, NodeStartError
from kvops.node import check_files, check_gpu, check_machine, preflight
from kvops.node.check import CHECKS, check_start, run_checks
from kvops.node.finding import Finding
from tests.harness import run_kvops


def settings(tiny_model: Path, **sections: Any) -> NodeConfig:
    usual = {
        "model": {"name": str(tiny_model)}, "kv_cache": {"blocks": 64},
        "server": {"port": 0, "control_port": 0}, "runtime": {"device": "cpu"},
    }  # fmt: skip
    return NodeConfig.model_validate(usual | sections)


def finding(config: NodeConfig, check: str) -> Finding:
    return next(one for one in run_checks(config) if one.check == check)


def test_a_machine_that_can_start_a_node(tiny_model: Path) -> None:
    found = run_checks(settings(tiny_model))
    assert [one.check for one in found] == list(CHECKS)
    assert [one for one in found if one.status == "fail"] == []
    assert all(one.remedy for one in found if one.status in ("warn", "fail"))
    assert not paths.state_dir().exists(), "a look makes nothing"
    reported: list[tuple[str, str]] = []
    model = check_start(settings(tiny_model), lambda *line: reported.append(line))
    assert model.path == tiny_model
    assert reported[0][0] == "checks"
    assert "torch" in reported[0][1]


def refused(config: NodeConfig, check: str, kind: type[KvopsError]) -> Finding:
    """What a check finds is what a start says."""
    found = finding(config, check)
    assert found.status == "fail", found
    assert found.remedy
    with pytest.raises(kind) as caught:
        check_start(config, lambda step, detail: None)
    # How much memory is free may be another number by now.
    said = [re.sub(r"\d[\d.]*", "#", text) for text in (caught.value.message, caught.value.hint)]
    assert said == [re.sub(r"\d[\d.]*", "#", text) for text in (found.detail, found.remedy)]
    return found


def test_a_port_that_is_taken(tiny_model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = settings(tiny_model, server={"port": port, "control_port": 0})
        assert str(port) in refused(config, "port", NodeStartError).detail
        assert finding(config, "control port").status == "pass"


def test_a_model_that_is_not_there(tiny_model: Path) -> None:
    config = settings(tiny_model, model={"name": "nowhere"})
    assert "nowhere" in refused(config, "model", KvopsError).detail
    assert finding(config, "memory").status == "fail"


def test_memory_that_cannot_suffice(tiny_model: Path) -> None:
    config = settings(tiny_model, kv_cache={"bytes": 2**46})
    found = refused(config, "memory", NodeStartError)
    assert "exceed" in found.detail
    assert "lower kv_cache.bytes" in found.remedy


def test_a_full_disk(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    left = {"free": 2**20}
    monkeypatch.setattr(
        check_files.shutil, "disk_usage", lambda path: usage(2**40, 0, left["free"])
    )
    config = settings(tiny_model)
    assert "1.0 MiB are free" in refused(config, "disk", NodeStartError).detail
    left["free"] = 2**27
    found = finding(config, "disk")
    assert found.status == "warn"
    assert "logging.total_bytes" in found.remedy


def test_secrets_and_folders_that_others_may_read(tiny_model: Path) -> None:
    config = settings(tiny_model)
    folder = paths.make_private(registry.node_dir("node"))
    folder.chmod(0o755)
    found = finding(config, "folders")
    assert (found.status, found.remedy) == ("warn", f"chmod 700 {folder}")
    token = registry.token_file("node")
    token.write_text("x" * 43)
    token.chmod(0o644)
    assert refused(config, "folders", ConfigError).remedy == f"chmod 600 {token}"
    token.chmod(0o600)
    folder.chmod(0o700)
    assert finding(config, "folders").status == "pass"


def test_keys_that_cannot_be_used(tiny_model: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("[]")
    keys.chmod(0o604)
    config = settings(tiny_model, server={"port": 0, "control_port": 0, "api_keys_file": str(keys)})
    assert str(keys) in refused(config, "keys and certificate", ConfigError).detail


def test_a_gpu_that_is_not_there(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_gpu, "_DRIVER", Path("/nowhere"))
    config = settings(tiny_model, runtime={"device": "cuda"})
    assert "NVIDIA driver" in refused(config, "gpu", ConfigError).detail
    assert finding(settings(tiny_model, runtime={"device": "auto"}), "gpu").status == "skip"


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_a_cache_that_only_a_gpu_computes(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.setattr(check_gpu, "may_use_gpu", lambda device: device.startswith("cuda"))
    config = settings(
        tiny_model, runtime={"device": device}, kv_cache={"blocks": 64, "dtype": "fp8"}
    )
    assert "fp8 needs an NVIDIA GPU" in refused(config, "gpu", ConfigError).detail
    assert "use int8" in finding(config, "gpu").remedy


def test_a_gpu_beside_a_torch_for_cpus(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(check_gpu, "_DRIVER", tmp_path)
    monkeypatch.setattr(check_gpu, "torch_cuda", lambda: None)
    assert finding(settings(tiny_model, runtime={"device": "auto"}), "gpu").status == "warn"
    config = settings(tiny_model, runtime={"device": "cuda:1"})
    assert "built for CPUs" in refused(config, "gpu", ConfigError).detail


@pytest.mark.parametrize(
    ("driver", "cuda", "status"),
    [((12, 8), (12, 8), "pass"), ((13, 0), (12, 8), "pass"), ((12, 4), (12, 8), "warn")],
)
def test_a_driver_that_suits(driver: tuple[int, int], cuda: tuple[int, int], status: str) -> None:
    assert check_gpu.driver_suits(driver, cuda).status == status


def test_a_driver_that_is_too_old() -> None:
    with pytest.raises(NodeStartError, match=r"CUDA 11\.8, torch was built for 12\.1") as caught:
        check_gpu.driver_suits((11, 8), (12, 1))
    assert "update the NVIDIA driver" in caught.value.hint


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("cuda: Optional[str] = '12.8'", (12, 8)),
        ("cuda = '13.0'", (13, 0)),
        ("cuda: Optional[str] = None", None),
    ],
)
def test_the_cuda_of_torch_is_read_from_its_file(
    line: str, version: tuple[int, int] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "version.py").write_text(f"__version__ = '2.9.9'\n{line}\nhip = '6.1'\n")
    spec = type("Spec", (), {"origin": str(tmp_path / "__init__.py")})()
    monkeypatch.setattr(check_gpu.importlib.util, "find_spec", lambda name: spec)
    assert check_gpu.torch_cuda() == version


class _Nvml:
    """A GPU with 80 GiB, of which `free` are free, behind a driver for CUDA 12.4."""

    NVMLError = OSError
    free = 8 * 2**30

    def __init__(self) -> None:
        self.asked: list[object] = []

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 12040

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        self.asked.append(index)
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "GPU 80"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return type("Memory", (), {"total": 80 * 2**30, "free": self.free})()


def test_the_plan_is_held_against_the_memory_of_the_gpu(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nvml = _Nvml()
    monkeypatch.setitem(__import__("sys").modules, "pynvml", nvml)
    monkeypatch.setattr(check_gpu.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(check_gpu, "_DRIVER", tmp_path)
    monkeypatch.setattr(check_gpu, "torch_cuda", lambda: (12, 1))
    monkeypatch.setattr(preflight, "host_memory", lambda: pytest.fail("not the host's"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    config = settings(tiny_model, runtime={"device": "cuda:1"}, kv_cache={"bytes": "4GiB"})
    assert "GPU 80, 8.0 GiB free; CUDA 12.4" in finding(config, "gpu").detail
    assert finding(config, "memory").status == "pass"
    assert set(nvml.asked) == {7}
    nvml.free = 2 * 2**30
    found = finding(config, "memory")
    assert (found.status, "exceed the 2.0 GiB" in found.detail) == ("fail", True)


def test_a_clock_that_is_wrong(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = settings(tiny_model)
    monkeypatch.setattr(check_machine, "_synchronised", lambda: False)
    assert "not synchronised" in finding(config, "clock").detail
    monkeypatch.setattr(check_machine, "_YEARS", range(1970, 1971))
    assert "year" in finding(config, "clock").detail
    monkeypatch.undo()


def test_a_clock_behind_what_nodes_wrote(tiny_model: Path) -> None:
    folder = paths.make_private(registry.node_dir("node"))
    (folder / "node.log").touch()
    os.utime(folder / "node.log", (2**31, 2**31))
    found = finding(settings(tiny_model), "clock")
    assert found.status == "warn"
    assert "behind a file" in found.detail


def test_few_descriptors_are_a_warning(tiny_model: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        found = finding(settings(tiny_model), "descriptors")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found.status == "warn"
    assert "512 open files allow 256 connections" in found.detail


def test_strict_memory_accounting_is_a_warning(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "overcommit").write_text("2\n")
    monkeypatch.setattr(check_machine, "_OVERCOMMIT", tmp_path / "overcommit")
    assert finding(settings(tiny_model), "memory policy").status == "warn"


def test_the_command_says_it_all_and_its_exit_code(tiny_model: Path, kvops_home: Path) -> None:
    env = {"KVOPS_HOME": str(kvops_home)}
    file = kvops_home.parent / "node.yaml"
    start = f"model: {{name: {tiny_model}}}\nserver: {{port: 0, control_port: 0}}\n"
    file.write_text(start + "kv_cache: {blocks: 64}\n")
    fine = run_kvops("node", "check", "-c", str(file), "--json", env=env)
    assert fine.returncode == 0, fine.stdout + fine.stderr
    rows = json.loads(fine.stdout)
    assert [row["check"] for row in rows] == list(CHECKS)
    assert set(rows[0]) == {"check", "status", "detail", "remedy"}
    file.write_text(start + "kv_cache: {bytes: 64TiB}\n")
    short = run_kvops("node", "check", "-c", str(file), env=env)
    assert short.returncode == 1
    assert "fail  memory" in short.stdout
    assert "next: lower kv_cache.bytes" in short.stdout
    file.write_text("kv_cash: {}")
    assert run_kvops("node", "check", "-c", str(file), env=env).returncode == 2

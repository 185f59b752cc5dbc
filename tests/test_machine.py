"""The memory that a container leaves, under either version of control groups, made up as files."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from kvops import machine
from kvops.machine import Memory, host_memory

NO_LIMIT = "9223372036854771712"


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(machine, "_CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "_OWN", tmp_path / "own")
    return tmp_path / "cgroup"


def put(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


def test_the_tightest_group_of_version_2_counts(groups: Path) -> None:
    (groups.parent / "own").write_text("0::/outer/inner\n")
    put(groups / "outer/inner", memory__max="max", memory__current="100")
    put(
        groups / "outer",
        memory__max="1000000",
        memory__current="400000",
        memory__stat="anon 1\ninactive_file 50000",
    )
    assert host_memory() == Memory(1_000_000, 650_000)


def test_version_1_counts(groups: Path) -> None:
    (groups.parent / "own").write_text("5:cpu:/x\n4:memory:/outer/inner\n0::/\n")
    put(
        groups / "memory/outer/inner",
        memory__limit_in_bytes=NO_LIMIT,
        memory__usage_in_bytes="100",
    )
    put(
        groups / "memory/outer",
        memory__limit_in_bytes="1000000",
        memory__usage_in_bytes="400000",
        memory__stat="inactive_file 1\ntotal_inactive_file 50000",
    )
    assert host_memory() == Memory(1_000_000, 650_000)


def test_a_container_sees_its_own_group_as_the_root(groups: Path) -> None:
    (groups.parent / "own").write_text("4:cpu,memory:/docker/of-the-host\n")
    put(groups / "memory", memory__limit_in_bytes="500000", memory__usage_in_bytes="600000")
    assert host_memory() == Memory(500_000, 0), "over its limit, nothing is left"


def test_without_limits_it_is_the_machine(groups: Path) -> None:
    (groups.parent / "own").write_text("4:memory:/\n0::/\n")
    put(groups / "memory", memory__limit_in_bytes=NO_LIMIT, memory__usage_in_bytes="1")
    put(groups, memory__max="max", memory__current="1")
    assert host_memory().total == psutil.virtual_memory().total
    assert 0 < host_memory().free <= host_memory().total

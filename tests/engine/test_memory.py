"""Sizing the pool, and limits of the container."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kvops.errors import NodeStartError
from kvops.node.engine import memory
from kvops.node.engine.memory import DeviceMemory, MemoryAccounts, plan_blocks
from kvops.node.wire import PoolPlan

MEMORY = DeviceMemory(total=10_000, free=5_000)


@pytest.mark.parametrize(
    ("plan", "blocks"),
    [
        (PoolPlan(block_size=16, blocks=7, bytes=1, memory_fraction=0.9), 7),
        (PoolPlan(block_size=16, bytes=1_050), 10),
        (PoolPlan(block_size=16, memory_fraction=0.5), 20),
    ],
)
def test_the_first_setting_decides(plan: PoolPlan, blocks: int) -> None:
    assert plan_blocks(plan, 100, 1_000, MEMORY) == blocks


def test_what_does_not_fit_is_refused_with_the_accounts() -> None:
    with pytest.raises(
        NodeStartError, match=r"weights 1000 B \+ pool 4.0 KiB exceed the 4.9 KiB"
    ) as caught:
        plan_blocks(PoolPlan(block_size=16, blocks=41), 100, 1_000, MEMORY)
    assert "kv_cache.blocks" in caught.value.hint
    with pytest.raises(NodeStartError, match="the weights need"):
        plan_blocks(PoolPlan(block_size=16, blocks=1), 100, 5_000, MEMORY)


def test_the_ledger_closes_even_where_accounts_exceed_what_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accounts = MemoryAccounts(
        torch.device("cpu"), weights=4_000, kv_reserved=3_000, activations=2_000
    )
    for free in (0, 500, 2_500, 9_000):
        monkeypatch.setattr(
            memory, "device_memory", lambda device, free=free: DeviceMemory(10_000, free)
        )
        ledger = accounts.ledger(kv_used=1, kv_cached=2)
        assert 9_000 + ledger.other + ledger.free == ledger.total
        assert ledger.other >= 0
        assert ledger.free >= 0


def test_the_tightest_control_group_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, proc = tmp_path / "cgroup", tmp_path / "proc"
    inner = root / "outer" / "inner"
    inner.mkdir(parents=True)
    proc.mkdir()
    (proc / "cgroup").write_text("0::/outer/inner\n")
    (inner / "memory.max").write_text("max\n")
    (inner / "memory.current").write_text("100\n")
    (inner.parent / "memory.max").write_text("1000000\n")
    (inner.parent / "memory.current").write_text("400000\n")
    (inner.parent / "memory.stat").write_text("anon 1\ninactive_file 50000\n")
    monkeypatch.setattr(memory, "_CGROUP", root)
    monkeypatch.setattr(memory, "_PROC", proc)
    assert memory.device_memory(torch.device("cpu")) == DeviceMemory(1_000_000, 650_000)


def test_a_peak_is_measured() -> None:
    """In a process of its own: what other tests give back meanwhile would be taken off the peak."""
    code = """
import torch
from kvops.node.engine.memory import peak_of
print(peak_of(torch.device("cpu"), lambda: torch.ones(64 * 2**20, dtype=torch.uint8)))
"""
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert 60 * 2**20 <= int(printed.stdout) <= 90 * 2**20

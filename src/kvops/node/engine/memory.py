"""Where the device's memory goes: how large the pool may be, what a step needs at its peak, and a ledger that closes.

Invariant: weights + kv_reserved + activations + other + free = total, by construction.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from kvops.errors import ConfigError, NodeStartError
from kvops.node.wire import PoolPlan
from kvops.telemetry.snapshot import MemoryLedger
from kvops.units import format_bytes

_CGROUP = Path("/sys/fs/cgroup")
_PROC = Path("/proc/self")


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes."""

    total: int
    free: int


def device_memory(device: torch.device) -> DeviceMemory:
    """What this process may still use: of the GPU, or of the machine within its container's limits."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return DeviceMemory(total, free)
    machine = psutil.virtual_memory()
    total, free = machine.total, machine.available
    for limit, left in _cgroup_limits():
        total, free = min(total, limit), min(free, left)
    return DeviceMemory(total, free)


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return f"cuda:{device.index or 0} {torch.cuda.get_device_name(device)}"
    return "cpu"


def _cgroup_limits() -> list[tuple[int, int]]:
    """(limit, left) of this process's control group and each one around it (cgroup v2), where there is a limit."""
    own = next(
        (line[3:] for line in _lines(_PROC / "cgroup") if line.startswith("0::")), "/"
    ).lstrip("/")
    groups = [_CGROUP / own, *(_CGROUP / own).parents]
    inside = [group for group in groups if group.is_relative_to(_CGROUP)]
    return [limit for group in inside if (limit := _cgroup_limit(group)) is not None]


def _cgroup_limit(group: Path) -> tuple[int, int] | None:
    limit, current = _lines(group / "memory.max"), _lines(group / "memory.current")
    if not limit or not current or limit[0] == "max":
        return None
    reclaimable = sum(
        int(line.split()[1])
        for line in _lines(group / "memory.stat")
        if line.startswith("inactive_file ")
    )
    return int(limit[0]), max(0, int(limit[0]) - int(current[0]) + reclaimable)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().split("\n")
    except OSError:
        return []


def plan_blocks(plan: PoolPlan, bytes_per_block: int, weights: int, memory: DeviceMemory) -> int:
    """How many blocks the pool gets, decided before the weights are loaded.

    Raises ConfigError if it is smaller than one block, NodeStartError if weights and pool exceed what is free.
    """
    left = memory.free - weights
    if left <= 0:
        raise NodeStartError(
            f"the weights need {format_bytes(weights)}, {format_bytes(memory.free)} are free",
            hint="use a smaller model, model.weights_dtype: bfloat16, or free some memory",
        )
    blocks = _asked_blocks(plan, bytes_per_block, left)
    if blocks < 1:
        raise ConfigError(
            f"kv_cache: the pool holds no block, a block of {plan.block_size} tokens is "
            f"{format_bytes(bytes_per_block)}",
            hint="raise kv_cache.bytes or kv_cache.memory_fraction, or lower kv_cache.block_size",
        )
    pool = blocks * bytes_per_block
    if pool > left:
        raise NodeStartError(
            f"weights {format_bytes(weights)} + pool {format_bytes(pool)} exceed the "
            f"{format_bytes(memory.free)} that are free",
            hint="lower kv_cache.blocks, kv_cache.bytes or kv_cache.memory_fraction",
        )
    return blocks


def _asked_blocks(plan: PoolPlan, bytes_per_block: int, left: int) -> int:
    if plan.blocks is not None:
        return plan.blocks
    wanted = plan.bytes if plan.bytes is not None else int(left * plan.memory_fraction)
    return wanted // bytes_per_block


def peak_of(device: torch.device, work: Callable[[], None]) -> int:
    """Bytes by which memory grows at the most while `work` runs."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        return torch.cuda.max_memory_allocated(device) - before
    gc.collect()  # garbage freed meanwhile would hide as much of the peak
    _reset_peak()
    before = psutil.Process().memory_info().rss
    work()
    return max(0, _peak_resident() - before)


def _reset_peak() -> None:
    """Without the right to do so, the peak of loading stays, and the account is an upper bound."""
    try:
        (_PROC / "clear_refs").write_text("5")
    except OSError:
        return


def _peak_resident() -> int:
    for line in _lines(_PROC / "status"):
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return psutil.Process().memory_info().rss


@dataclass(frozen=True, slots=True)
class MemoryAccounts:
    """The parts that are fixed once a node has warmed up, bytes."""

    device: torch.device
    weights: int
    kv_reserved: int
    activations: int

    def ledger(self, kv_used: int, kv_cached: int) -> MemoryLedger:
        memory = device_memory(self.device)
        claimed = self.weights + self.kv_reserved + self.activations
        # The working memory of a step is given back between steps, so it shows as free when it is not.
        free = max(0, min(memory.free - self.activations, memory.total - claimed))
        return MemoryLedger(
            device=device_name(self.device),
            total=memory.total,
            weights=self.weights,
            kv_reserved=self.kv_reserved,
            activations=self.activations,
            other=memory.total - claimed - free,
            free=free,
            kv_used=kv_used,
            kv_cached=kv_cached,
        )

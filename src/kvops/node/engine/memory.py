"""Where the device's memory goes: what is there, what a step takes at its peak, and a ledger that closes.

Invariant: weights + kv_reserved + activations + other + free = total, by construction.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from kvops.machine import Memory, host_memory
from kvops.telemetry.snapshot import MemoryLedger

_PROC = Path("/proc/self")


def device_memory(device: torch.device) -> Memory:
    """What this process may still use: of the GPU, or of the machine within its container's limits."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return Memory(total, free)
    return host_memory()


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return f"cuda:{device.index or 0} {torch.cuda.get_device_name(device)}"
    return "cpu"


def peak_of(device: torch.device, work: Callable[[], None]) -> int:
    """Bytes by which memory grows at the most while `work` runs."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        return torch.cuda.max_memory_allocated(device) - before
    _give_back()
    _reset_peak()
    before = psutil.Process().memory_info().rss
    work()
    return max(0, _peak_resident() - before)


def _give_back() -> None:
    """Garbage freed meanwhile, or memory that the C library keeps for later, would hide as much of a peak."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)


def _reset_peak() -> None:
    """Without the right to do so, the peak of loading stays, and the account is an upper bound."""
    try:
        (_PROC / "clear_refs").write_text("5")
    except OSError:
        return


def _peak_resident() -> int:
    for line in (_PROC / "status").read_text().splitlines():
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
    buffers: int = 0
    """Part of the activations that is kept between steps."""

    def ledger(self, kv_used: int, kv_cached: int) -> MemoryLedger:
        memory = device_memory(self.device)
        claimed = self.weights + self.kv_reserved + self.activations
        # What a step gives back at its end shows as free when it is not.
        passing = self.activations - self.buffers
        free = max(0, min(memory.free - passing, memory.total - claimed))
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

"""What this machine can do at best, measured beside the figures that are held against it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

_WORDS = 64 * 2**20
_SIDE = 1024


@dataclass(frozen=True)
class Ceilings:
    read_bytes_per_second: float
    float32_flops: float
    bfloat16_flops: float

    def __str__(self) -> str:
        return (
            f"memory read {self.read_bytes_per_second / 1e9:.1f} GB/s, oneDNN float32 "
            f"{self.float32_flops / 1e9:.0f} and bfloat16 {self.bfloat16_flops / 1e9:.0f} GFLOP/s"
        )


def measure_ceilings() -> Ceilings:
    # Written first: untouched pages all map to one page of zeros, which the cache holds.
    memory = torch.randint(0, 100, (_WORDS,), dtype=torch.int32)
    read = memory.nbytes / best(lambda: memory.amax(), 8)
    return Ceilings(read, _flops(torch.float32), _flops(torch.bfloat16))


def _flops(kind: torch.dtype) -> float:
    a, b = torch.rand(_SIDE, _SIDE, dtype=kind), torch.rand(_SIDE, _SIDE, dtype=kind)
    return 2 * _SIDE**3 / best(lambda: a @ b, 8)


def best(work: Callable[[], object], times: int) -> float:
    """Seconds of the quickest of `times` runs, after one that warms up."""
    work()
    seconds = []
    for _ in range(times):
        begun = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begun)
    return min(seconds)

"""How many threads compute: what was asked for, else one for each core that this process may really use."""

from __future__ import annotations

import math
import os
from pathlib import Path

import psutil

_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


def compute_threads(asked: int | None) -> int:
    """Two threads of one core share its vector units, and a thread without a core holds up all others."""
    allowed = len(os.sched_getaffinity(0))
    physical = psutil.cpu_count(logical=False) or allowed
    return asked or max(1, min(allowed, physical, _quota() or allowed))


def _quota() -> int | None:
    """Whole cores of this container's CPU limit (cgroup v2), None without one."""
    try:
        limit, period = _CPU_MAX.read_text().split()
    except (OSError, ValueError):
        return None
    return None if limit == "max" else math.floor(int(limit) / int(period))

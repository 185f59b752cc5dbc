"""How much memory this machine has, and how much of it the container around this process leaves to it. No torch.

Invariant: a limit that is there is found whichever version of control groups sets it; the tightest counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

_CGROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes."""

    total: int
    free: int
    """What may still be taken, the page cache that would give way included."""


@dataclass(frozen=True, slots=True)
class _Files:
    """What a version of control groups calls its files."""

    limit: str
    usage: str
    reclaimable: str
    """In `memory.stat`: cached file pages, those of inner groups included."""


_V1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Files("memory.max", "memory.current", "inactive_file")


def host_memory() -> Memory:
    """Of this machine, within the limits of this process's control group and of each one around it."""
    machine = psutil.virtual_memory()
    limits = [limit for folder, files in _groups() if (limit := _limit(folder, files)) is not None]
    return Memory(
        total=min([machine.total, *(limit.total for limit in limits)]),
        free=min([machine.available, *(limit.free for limit in limits)]),
    )


def _groups() -> list[tuple[Path, _Files]]:
    """Folders of this process's memory groups, inner ones first. Within a container the path may be the host's,
    whose folders are not there; the mount itself is then the container's own group."""
    found: list[tuple[Path, _Files]] = []
    for line in _lines(_OWN):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            found += [(folder, _V2) for folder in _upwards(_CGROUPS, path)]
        elif "memory" in controllers.split(","):
            found += [(folder, _V1) for folder in _upwards(_CGROUPS / "memory", path)]
    return found


def _upwards(root: Path, path: str) -> list[Path]:
    own = root / path.lstrip("/")
    return [folder for folder in (own, *own.parents) if folder.is_relative_to(root)]


def _limit(folder: Path, files: _Files) -> Memory | None:
    limit, usage = _lines(folder / files.limit), _lines(folder / files.usage)
    if not limit or not usage or limit[0] == "max":
        return None
    stat = dict(line.split() for line in _lines(folder / "memory.stat"))
    left = int(limit[0]) - int(usage[0]) + int(stat.get(files.reclaimable, 0))
    return Memory(int(limit[0]), max(0, left))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []

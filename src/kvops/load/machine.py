"""Who has this machine's CPUs while a load runs: the load generator, the node where it is one of this machine, others.

A time that is too long is not the node's fault while others take the CPUs it needs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import TypedDict

import psutil

from kvops.telemetry import targets

LIST_EVERY = 5
"""Looks after which children are looked for again: it reads a file of every process of the machine."""


class Usage(TypedDict):
    """Shares of all CPUs of this machine since the look before, 0..1: the fields of a ClientSample."""

    machine: float
    """Used by everything."""
    ours: float
    """By the load generator: kvops and all processes it started."""
    node: float | None
    """By the processes of the node; None where they are not known."""


def node_pid(url: str) -> int | None:
    """Process of the node that kvops started on this machine at `url`. None for any other: what listens there may be
    a gateway or a tunnel, and the work be done elsewhere."""
    record = targets.record_at(url)
    return None if record is None else record.pid


class Machine:
    """Looks at this machine's CPUs; the first look is taken with the object."""

    def __init__(self, ours: int, node: int | None) -> None:
        self._roots = {"ours": ours} | ({} if node is None else {"node": node})
        self._trees: dict[str, list[psutil.Process]] = {}
        self._used: dict[str, dict[int, float]] = {}
        self._looks, self._at = 0, time.monotonic()
        psutil.cpu_percent()
        self._take()

    def look(self) -> Usage:
        """Raises nothing for processes that come and go."""
        shares = self._take()
        return Usage(
            machine=psutil.cpu_percent() / 100, ours=shares["ours"], node=shares.get("node")
        )

    def _take(self) -> dict[str, float]:
        if self._looks % LIST_EVERY == 0:
            self._trees = {name: _tree(pid) for name, pid in self._roots.items()}
        self._looks += 1
        now = time.monotonic()
        room = max(now - self._at, 1e-3) * (os.cpu_count() or 1)
        self._at = now
        return {name: min(1.0, self._spent(name) / room) for name in self._roots}

    def _spent(self, name: str) -> float:
        """CPU seconds of a tree's processes since the look before."""
        used = _seconds(self._trees[name])
        before, self._used[name] = self._used.get(name, {}), used
        return sum(max(0.0, spent - before[pid]) for pid, spent in used.items() if pid in before)


def _tree(pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []


def _seconds(processes: Iterable[psutil.Process]) -> dict[int, float]:
    used = {}
    for one in processes:
        try:
            spent = one.cpu_times()
        except psutil.Error:
            continue
        used[one.pid] = spent.user + spent.system
    return used

"""Checks of the machine: Python, torch, its clock, and what the system lets a process have."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import platform
import resource
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from kvops.config.schema import NodeConfig
from kvops.errors import NodeStartError
from kvops.node.finding import Looked
from kvops.node.listener import CONTROL_CONNECTIONS, DATA_CONNECTIONS, connection_bound
from kvops.paths import nodes_dir

_PYTHON = (3, 11)
_TORCH = (2, 6)
_YEARS = range(2025, 2100)
_DRIFT = 1.0
"""Seconds that two clocks may differ over a moment."""
_TIME_ERROR = 5
"""adjtimex(2): the clock is not synchronised."""
_OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")
_NEVER_OVERCOMMIT = "2"


def check_python(_: NodeConfig) -> Looked:
    version = platform.python_version()
    if sys.version_info < _PYTHON:
        raise NodeStartError(f"python {version} is older than 3.11", hint="install a newer one")
    return Looked("pass", f"python {version}")


def check_torch(_: NodeConfig) -> Looked:
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        raise NodeStartError("torch is not installed", hint="pip install torch") from None
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdecimal())
    if numbers < _TORCH:
        # Older ones run code out of a file of weights (CVE-2025-32434).
        raise NodeStartError(f"torch {version} is older than 2.6", hint="pip install -U torch")
    return Looked("pass", f"torch {version}")


def check_clock(_: NodeConfig) -> Looked:
    """Times in logs, certificates and keys are only as good as this."""
    wall, steady = time.time(), time.monotonic()
    year = datetime.fromtimestamp(wall, UTC).year
    if year not in _YEARS:
        return Looked("warn", f"the clock says the year {year}", "set the clock")
    newest = _newest_file()
    if newest > wall + 60:
        what = f"the clock is {newest - wall:.0f} s behind a file of an earlier node"
        return Looked("warn", what, "set the clock")
    if abs((time.time() - wall) - (time.monotonic() - steady)) > _DRIFT:
        return Looked("warn", "the clock is being changed now", "start when it is set")
    shown = datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    if not _synchronised():
        return Looked("warn", f"{shown}, not synchronised", "run chrony or systemd-timesyncd")
    return Looked("pass", shown)


def check_descriptors(_: NodeConfig) -> Looked:
    """A node takes fewer connections where it may open fewer files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    bound = connection_bound(DATA_CONNECTIONS)
    if bound < DATA_CONNECTIONS:
        what = f"{soft} open files allow {bound} connections in place of {DATA_CONNECTIONS}"
        most = "" if hard == resource.RLIM_INFINITY else f" (the hard limit is {hard})"
        return Looked("warn", what, f"ulimit -n 4096, or LimitNOFILE= of the service{most}")
    count = "any number of" if soft == resource.RLIM_INFINITY else str(soft)
    return Looked("pass", f"{count} open files, for {bound + CONTROL_CONNECTIONS} connections")


def check_memory_policy(_: NodeConfig) -> Looked:
    """Under strict accounting the address space that libraries reserve counts as memory."""
    try:
        mode = _OVERCOMMIT.read_text().strip()
    except OSError:
        return Looked("skip", "this system has no vm.overcommit_memory")
    if mode == _NEVER_OVERCOMMIT:
        what = "vm.overcommit_memory = 2: what is only reserved counts as used"
        return Looked("warn", what, "sysctl vm.overcommit_memory=0, if loading fails for memory")
    return Looked("pass", f"vm.overcommit_memory = {mode}")


def _newest_file() -> float:
    """When a node of this machine wrote last, in Unix seconds; 0 where none ever did."""
    folder = nodes_dir()
    files = folder.glob("*/*") if os.access(folder, os.R_OK | os.X_OK) else ()
    return max((file.lstat().st_mtime for file in files), default=0.0)


def _synchronised() -> bool:
    """As the kernel sees it; where it cannot be asked, nothing speaks against it."""
    try:
        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return True
    # struct timex is 208 bytes on 64-bit Linux; all zero, it only asks.
    return int(adjtimex(ctypes.create_string_buffer(512))) != _TIME_ERROR

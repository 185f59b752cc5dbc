"""Where kvops keeps things on disk (XDG), and how it writes what matters.

`KVOPS_HOME` moves all four folders under one. Folders are made 0700, secrets 0600.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from kvops import failpoints


def _folder(kind: str, variable: str, fallback: str) -> Path:
    home = os.environ.get("KVOPS_HOME")
    if home:
        return Path(home).expanduser() / kind
    base = os.environ.get(variable)
    return (Path(base) if base else Path.home() / fallback) / "kvops"


def config_dir() -> Path:
    return _folder("config", "XDG_CONFIG_HOME", ".config")


def state_dir() -> Path:
    return _folder("state", "XDG_STATE_HOME", ".local/state")


def cache_dir() -> Path:
    return _folder("cache", "XDG_CACHE_HOME", ".cache")


def data_dir() -> Path:
    return _folder("data", "XDG_DATA_HOME", ".local/share")


def models_dir() -> Path:
    return data_dir() / "models"


def nodes_dir() -> Path:
    return state_dir() / "nodes"


def runs_dir() -> Path:
    return state_dir() / "runs"


def make_private(folder: Path) -> Path:
    """Make `folder` and its missing parents, each 0700."""
    # mkdir(parents=True) would make the parents with the default mode.
    for path in [*reversed(folder.parents), folder]:
        if not path.is_dir():
            path.mkdir(mode=0o700, exist_ok=True)
    return folder


def open_regular(path: Path) -> BinaryIO:
    """To read a file that somebody named. Raises OSError, also for a pipe or device, which may never have an end."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(handle, "rb")


def write_atomic(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Replace `path` with `data` so that a crash leaves the old file or the new one, whole.

    Temp file, fsync, rename, fsync of the folder. Raises OSError.
    """
    make_private(path.parent)
    temp = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    handle = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        failpoints.reach("disk.rename.crash")
        os.replace(temp, path)
    except BaseException:
        temp.unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)


def fsync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

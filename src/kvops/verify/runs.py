"""Kept gate runs: one folder each with `result.json`, from before the first check on, and the reports."""

from __future__ import annotations

import difflib
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from kvops import paths
from kvops.errors import UsageError
from kvops.units import format_bytes
from kvops.verify import result
from kvops.verify.result import Report

RESULT_FILE = "result.json"
LOCK_FILE = "lock"
LAST = "last"
MAX_BYTES = 64 * 2**20
"""Of a result file; one of a run with every check is some hundred kilobytes."""
_PREFIX = "verify-"
_NAME_ONE = "name a run that kvops verify runs lists, or a file of --json"


def folder(run_id: str) -> Path:
    return paths.runs_dir().resolve() / f"{_PREFIX}{run_id}"


def inside(folder: Path, name: str) -> Path | None:
    """What `name` leads to, if that is in `folder`: a result may come from elsewhere and name any file."""
    try:
        found = (folder / name).resolve()
        return found if found.is_relative_to(folder.resolve()) else None
    except (OSError, RuntimeError, ValueError):
        return None


def save(report: Report) -> Path:
    """Write `result.json` into the run's folder, in place of what an earlier check left; its path. Raises OSError."""
    path = folder(report.run_id) / RESULT_FILE
    paths.write_atomic(path, result.encode(report))
    return path


def folders() -> list[Path]:
    """Of all kept runs, the latest start last."""
    return sorted(file.parent for file in paths.runs_dir().glob(f"{_PREFIX}*/{RESULT_FILE}"))


def reports() -> Iterator[Report]:
    """All that can be read, the latest first."""
    for one in reversed(folders()):
        try:
            yield read(one / RESULT_FILE)
        except UsageError:
            continue


def read(file: Path) -> Report:
    """With the verdict that its rows have. Raises UsageError for what is no result of a gate, or is too large."""
    try:
        with paths.open_regular(file) as opened:
            data = opened.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise UsageError(
                f"{file} is larger than {format_bytes(MAX_BYTES)}, which no result of kvops verify is",
                hint=_NAME_ONE,
            )
        return result.recomputed(result.decode(data))
    except OSError as error:
        raise UsageError(
            f"cannot read {file}: {error.strerror}", hint="kvops verify runs lists what is kept"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise UsageError(f"{file} is no result of kvops verify: {error}", hint=_NAME_ONE) from None


def find(text: str) -> Report:
    """A run by id, by the start of an id, by folder or file; `last` is the latest. Raises UsageError."""
    for path in (Path(text), Path(text) / RESULT_FILE):
        if os.path.isfile(path):  # Path.is_file raises for a name that is too long
            return read(path)
    known = folders()
    if not known:
        raise UsageError(
            f"no run {text!r}: none is kept in {paths.runs_dir()}", hint="kvops verify makes one"
        )
    names = {one.name.removeprefix(_PREFIX): one for one in known}
    wanted = text.removeprefix(_PREFIX)
    found = [one for name, one in names.items() if wanted and name.startswith(wanted)]
    if text == LAST:
        found = [known[-1]]
    if wanted in names:
        found = [names[wanted]]
    if len(found) == 1:
        return read(found[0] / RESULT_FILE)
    if found:
        raise UsageError(
            f"{text!r} names {len(found)} runs",
            hint="give more of the id: kvops verify runs lists them",
        )
    near = difflib.get_close_matches(wanted, names, 1, 0.6)
    hint = f"did you mean {near[0]}? " if near else ""
    raise UsageError(f"no run {text!r}", hint=f"{hint}kvops verify runs lists them")


@contextmanager
def held(run_id: str) -> Iterator[None]:
    """For as long as a run goes on, nobody else takes it up. Raises UsageError when someone does; OSError."""
    where = paths.make_private(folder(run_id))
    with (where / LOCK_FILE).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"run {run_id} still goes on in another process",
                hint="wait for it to end, or stop it with Ctrl-C",
            ) from None
        yield


def is_running(run_id: str) -> bool:
    try:
        with (folder(run_id) / LOCK_FILE).open("r") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False

"""Where a run's reports go: all four into its folder, and each also where it was asked for.

A place that cannot take a report is told before anything is sent to a node; one that fails after the run takes the
report, never the verdict.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from kvops import paths
from kvops.errors import KvopsError, UsageError
from kvops.verify import html, junit, markdown, result, runs
from kvops.verify.result import Report

Format = Literal["json", "junit", "html", "markdown"]
FILES: dict[Format, str] = {
    "json": runs.RESULT_FILE,
    "junit": "junit.xml",
    "html": "report.html",
    "markdown": "report.md",
}
STDOUT = "-"
ROOM = 256 * 1024
"""Bytes that a folder has to take before a run begins."""
Wanted = Mapping[Format, str]
"""File of each report that was asked for; `-` is stdout."""


def render(kind: Format, report: Report) -> bytes:
    makers: dict[Format, Callable[[Report], bytes]] = {
        "json": result.encode,
        "junit": junit.render,
        "html": lambda report: html.render(report, runs.folder(report.run_id)),
        "markdown": markdown.render,
    }
    return makers[kind](report)


def require_places(wanted: Wanted) -> None:
    """Raises UsageError before anything is sent to a node, when its results would have no place."""
    _require_distinct(wanted)
    for kind, where in wanted.items():
        if where != STDOUT:
            _require_place(f"--{kind}", Path(where))
    try:
        _probe(paths.make_private(paths.runs_dir()))
    except OSError as error:
        raise UsageError(
            f"results are kept in {paths.runs_dir()}, and that cannot be written: {error.strerror}",
            hint="set KVOPS_HOME to a folder that can be written to and has room",
        ) from None


def _require_distinct(wanted: Wanted) -> None:
    places = [where if where == STDOUT else str(Path(where).resolve()) for where in wanted.values()]
    for kind, place in zip(wanted, places, strict=True):
        if places.count(place) > 1:
            raise UsageError(
                f"--{kind} {wanted[kind]}: another report goes there too",
                hint="name a file of its own for each report",
            )


def _require_place(option: str, file: Path) -> None:
    hint = "name another file; - is stdout"
    if file.is_dir():
        raise UsageError(f"{option} {file} is a folder", hint="name a file in it")
    if not file.parent.is_dir():
        raise UsageError(
            f"{option} {file}: there is no folder {file.parent}",
            hint="make it, or name a file in one that exists; - is stdout",
        )
    if file.exists() and not file.is_file():
        raise UsageError(f"{option} {file} is not a regular file", hint=hint)
    if not os.access(file.parent, os.W_OK):
        raise UsageError(
            f"{option} {file}: the folder {file.parent} cannot be written to", hint=hint
        )
    try:
        _probe(file.parent)
    except OSError as error:
        raise UsageError(
            f"{option} {file}: {file.parent} takes no file: {error.strerror}", hint=hint
        ) from None


def _probe(folder: Path) -> None:
    """Write and remove a file of ROOM bytes: a full disk looks writable until it is written to. Raises OSError."""
    probe = folder / f".kvops-room-{os.getpid()}"
    try:
        with probe.open("xb", buffering=0) as file:
            if file.write(bytes(ROOM)) < ROOM:
                file.write(bytes(ROOM))
    finally:
        probe.unlink(missing_ok=True)


def keep(report: Report) -> str:
    """Put all four into the run's folder; where the result is, or why something is not there."""
    lost = []
    for kind, name in FILES.items():
        try:
            file = runs.folder(report.run_id) / name
            paths.write_atomic(file, _rendered(kind, report))
        except (OSError, KvopsError) as error:
            lost.append(f"{name}: {_why(error)}")
    kept = str(runs.folder(report.run_id) / runs.RESULT_FILE)
    if not lost:
        return kept
    if len(lost) == len(FILES):
        return f"not saved: {lost[0]}"
    return f"{kept} (not saved: {'; '.join(lost)})"


def deliver(report: Report, wanted: Wanted) -> list[KvopsError]:
    """Write what was asked for; one error for each that could not be."""
    errors: list[KvopsError] = []
    for kind, where in wanted.items():
        try:
            _write(where, _rendered(kind, report))
        except (OSError, KvopsError) as error:
            errors.append(
                UsageError(
                    f"--{kind} {where} could not be written: {_why(error)}",
                    hint=f"kvops verify show {report.run_id} --{kind} FILE writes it again",
                )
            )
    return errors


def _rendered(kind: Format, report: Report) -> bytes:
    """Raises KvopsError: a defect of one report must not take the verdict, which is yet to be told."""
    try:
        return render(kind, report)
    except Exception as error:
        raise KvopsError(f"{type(error).__name__}: {error}") from error


def _why(error: OSError | KvopsError) -> str:
    return error.message if isinstance(error, KvopsError) else error.strerror or str(error)


def _write(where: str, data: bytes) -> None:
    if where == STDOUT:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    else:
        paths.write_atomic(Path(where), data, mode=0o644)

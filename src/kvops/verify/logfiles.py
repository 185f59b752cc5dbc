"""A node's log as the gate can read it: which files, and lines with the time each was written."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import NoReturn

import msgspec

from kvops import registry
from kvops.errors import UsageError
from kvops.verify.check import skip
from kvops.verify.context import Context

VARIABLE = "KVOPS_NODE_LOG"
MOST_BYTES = 64 * 2**20
"""Of each file, from its end."""
_ISO = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)")
_MONTH_DAY = re.compile(r"\b(\d\d-\d\d \d\d:\d\d:\d\d)\b")
"""As vLLM writes it, without a year and in local time."""
_HEAD = 160
"""Characters of a line in which its time is looked for."""


class Line(msgspec.Struct, frozen=True):
    number: int
    text: str
    at: float | None
    """Unix seconds; that of the line before where it has none of its own, so that a traceback has its message's."""


def log_files(context: Context, named: str | None) -> list[Path]:
    """The profile's file, else that of KVOPS_NODE_LOG, else those of a node of this machine; empty without any.

    Skips the check where a file is named that is not there.
    """
    given = named or os.environ.get(VARIABLE)
    if not given:
        return node_files(context)
    file = Path(given).expanduser()
    if not file.is_file():
        skip(f"there is no log file {file}", remedy=f"mend {VARIABLE}, or log_file in the profile")
    return [file]


def no_log(what_was_seen: str = "") -> NoReturn:
    skip(
        f"{what_was_seen}the node's log cannot be read from here",
        remedy=f"run the gate on the node's machine, or name a copy of its log in {VARIABLE}",
    )


def node_files(context: Context) -> list[Path]:
    """Logs of the kvops node of this machine that is looked at, with what was rotated since it or the gate began."""
    record = _record(context)
    if record is None:
        return []
    folder = registry.log_file(record.name).parent
    files = [*folder.glob("node.log*"), *folder.glob("engine.log*")]
    # A node that was started anew since the gate began has written of what went before, too.
    first = min(record.started_at, context.began)
    return sorted(file for file in files if _written_since(file, first))


def audit_files(context: Context) -> list[Path]:
    record = _record(context)
    return [] if record is None else sorted(registry.audit_dir(record.name).glob("*.jsonl"))


def started_at(context: Context) -> float | None:
    record = _record(context)
    return None if record is None else record.started_at


def is_here(context: Context) -> bool:
    """Whether it is a kvops node of this machine."""
    return _record(context) is not None


def _record(context: Context) -> registry.NodeRecord | None:
    try:
        record = registry.read(context.target.name)
    except UsageError:
        return None
    return record if record is not None and record.url == context.target.url else None


def _written_since(file: Path, seconds: float) -> bool:
    try:
        return file.stat().st_mtime >= seconds
    except OSError:
        return False


def lines_of(file: Path) -> Iterator[Line]:
    """The last 64 MiB of `file`. Skips the check when it cannot be read."""
    at: float | None = None
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, file.stat().st_size - MOST_BYTES))
            for number, raw in enumerate(opened, 1):
                text = raw.decode("utf-8", "replace").rstrip("\r\n")
                own = time_of(text)
                at = own if own is not None else at
                yield Line(number, text, at)
    except OSError as error:
        skip(
            f"{file.name} cannot be read: {error.strerror}",
            remedy="give the gate read access to it",
        )


def time_of(text: str) -> float | None:
    """Unix seconds of a log line; a time without a zone is local."""
    head = _stamp(text)
    try:
        if found := _ISO.search(head):
            return datetime.fromisoformat(found[1].replace(",", ".")).timestamp()
        if found := _MONTH_DAY.search(head):
            year = datetime.now().astimezone().year
            return datetime.strptime(f"{year}-{found[1]}", "%Y-%m-%d %H:%M:%S").timestamp()
    except (ValueError, OverflowError, OSError):
        return None
    return None


def _stamp(text: str) -> str:
    """Where the time is: the head of a plain line, the timestamp of a JSON one."""
    if text.startswith("{"):
        entry = entry_of(text)
        stamp = entry.get("timestamp") or entry.get("ts") or entry.get("time")
        return str(stamp) if stamp else ""
    return text[:_HEAD]


def entry_of(text: str) -> dict[str, object]:
    """The object of a JSON line; empty for any other."""
    if not text.startswith("{"):
        return {}
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}

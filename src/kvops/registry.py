"""The nodes of this machine: one folder a node in the state folder, with a record that the CLI and console read."""

from __future__ import annotations

import os
import re
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import psutil

from kvops import paths
from kvops.errors import NodeNotFound, UsageError

_HOST = re.compile(r"[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")
_TAIL_BYTES = 64 * 1024
SERVICE_HOME = Path("/var/lib/kvops")
"""KVOPS_HOME of `configs/systemd/kvops-node@.service`."""
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    pid: int
    pid_created: float
    """Start time of the process: a reused pid is not this node."""
    url: str
    control_url: str
    model: str
    started_at: float
    version: str
    api_keys_file: str | None = None
    """What the node takes its keys from; None where it has none, or not from a file."""

    def alive(self) -> bool:
        try:
            process = psutil.Process(self.pid)
            created = process.create_time()
            zombie = process.status() == psutil.STATUS_ZOMBIE
        except (psutil.Error, ValueError, OverflowError):  # also a number that can be no pid
            return False
        return abs(created - self.pid_created) < 2 and not zombie


def node_dir(name: str) -> Path:
    """Raises UsageError for a name that is no plain lower-case file name."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"node name {name!r} is not valid",
            hint="use lower-case letters, digits, . _ - (at most 63)",
        )
    return paths.nodes_dir() / name


def token_file(name: str) -> Path:
    """The admin token of the control plane, 0600."""
    return node_dir(name) / "admin.token"


def log_file(name: str) -> Path:
    return node_dir(name) / "node.log"


def audit_dir(name: str) -> Path:
    node_dir(name)  # refuses what is no name
    return _audits() / name


def audited() -> list[str]:
    """The nodes that have an audit, running or not."""
    folder = _audits()
    return sorted(p.name for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []


def _audits() -> Path:
    return paths.state_dir() / "audit"


def write(record: NodeRecord) -> None:
    paths.write_atomic(node_dir(record.name) / "node.json", msgspec.json.encode(record))


def read(name: str) -> NodeRecord | None:
    """None for a node that does not run, and for what can be no record of one."""
    try:
        data = (node_dir(name) / "node.json").read_bytes()
        record = msgspec.json.decode(data, type=NodeRecord)
        for url in (record.url, record.control_url):
            check_url(url)
    except (OSError, ValueError, RecursionError, UsageError):
        return None
    return record


def check_url(text: str) -> str:
    """`text` without slashes at its end. Raises UsageError for what is no http(s) URL with a host."""
    try:
        parts = urlsplit(text)
        valid = (
            parts.scheme in ("http", "https")
            and text.isprintable()
            and not re.search(r"\s", text)
            and _is_host(parts.hostname or "")
            and parts.port != 0
        )
    except ValueError:  # a port out of range, a bracket left open
        valid = False
    if not valid:
        raise UsageError(
            f"{text!r} is not an http(s) URL", hint="write it as http://HOST:PORT or https://HOST"
        )
    return text.rstrip("/")


def _is_host(name: str) -> bool:
    if ":" in name:
        return bool(ip_address(name))
    return len(name) <= 253 and _HOST.fullmatch(name) is not None


def remove(name: str) -> None:
    (node_dir(name) / "node.json").unlink(missing_ok=True)


def running() -> list[NodeRecord]:
    """The nodes of this machine whose process lives, by name."""
    folder = paths.nodes_dir()
    names = (
        sorted(p.name for p in folder.iterdir() if _NAME.fullmatch(p.name))
        if folder.is_dir()
        else []
    )
    records = (read(name) for name in names)
    return [record for record in records if record is not None and record.alive()]


def last_failure() -> str:
    """How the node that wrote last here ended, where that was by failure and it doesn't run: `chat: failed <time>,
    <code>; kvops node logs --node chat`. Empty where it ended well, or none ever ran.
    """
    logs = [log for log in paths.nodes_dir().glob("*/node.log") if _NAME.fullmatch(log.parent.name)]
    try:
        last = max(logs, key=lambda log: log.stat().st_mtime)
        with last.open("rb") as file:
            file.seek(max(0, last.stat().st_size - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).splitlines()
    except (OSError, ValueError):
        return ""
    record, name = read(last.parent.name), last.parent.name
    end = _failure(lines) or ("killed" if record is not None else "")
    if not end or (record is not None and record.alive()):
        return ""
    return f"{name}: {end}; kvops node logs --node {name}"


class _Line(msgspec.Struct):
    event: str = ""
    timestamp: str = ""
    error: str = ""


def _failure(lines: list[bytes]) -> str:
    """Of the lines of a log, where the last one that is whole tells of a failure."""
    for line in reversed(lines):
        try:
            told = msgspec.json.decode(line, type=_Line)
        except (msgspec.DecodeError, ValueError, RecursionError):
            continue
        return f"failed {told.timestamp[:19]}Z, {told.error}" if told.event == "failed" else ""
    return ""


def nothing_found(what: str) -> NodeNotFound:
    """No node, and where we looked; with those that do run there, else the last failure or how to start one."""
    names = ", ".join(record.name for record in running())
    start = last_failure() or "start one: kvops node start --model smollm2-135m --detach"
    hint = f"those that run: {names}" if names else start
    return NodeNotFound(
        f"{what} (looked in {paths.nodes_dir()})", hint="; ".join([hint, *_of_services()])
    )


def _of_services() -> list[str]:
    """The nodes of the systemd unit have a user and a home of their own."""
    home = Path(os.environ.get("KVOPS_HOME", "/")).absolute()
    if not SERVICE_HOME.is_dir() or home == SERVICE_HOME:
        return []
    return [f"nodes of systemd: sudo -u kvops KVOPS_HOME={SERVICE_HOME} kvops node status"]


def the_only_one() -> NodeRecord:
    """The default target. Raises NodeNotFound without a node, UsageError with several."""
    records = running()
    if not records:
        raise nothing_found("no node runs on this machine")
    if len(records) > 1:
        names = ", ".join(record.name for record in records)
        raise UsageError(f"several nodes run here: {names}", hint="name one with --node")
    return records[0]

"""Checks of what a node finds on disk and of the ports that it asks for. Nothing is made or changed."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import Literal

from kvops import paths, registry
from kvops.config.load import is_loopback
from kvops.config.schema import NodeConfig
from kvops.errors import NodeStartError
from kvops.node.access import Access
from kvops.node.auth import KeyRing, check_secret
from kvops.node.finding import Looked
from kvops.node.listener import bind
from kvops.units import format_bytes

LEAST_DISK = 64 * 2**20
_OPTIONS = {"port": "--port", "control_port": "--control-port"}


def check_disk(config: NodeConfig) -> Looked:
    folder = _existing(paths.state_dir())
    free = shutil.disk_usage(folder).free
    if free < LEAST_DISK:
        raise NodeStartError(
            f"{format_bytes(free)} are free in {paths.state_dir()}, {format_bytes(LEAST_DISK)} are needed",
            hint="free some space, or move the folders with KVOPS_HOME",
        )
    logs = config.logging.total_bytes
    audit = config.audit.max_bytes * config.audit.keep if config.audit.enabled else 0
    if free < logs + audit:
        what = f"{format_bytes(free)} are free, logs and audit may grow to {format_bytes(logs + audit)}"
        return Looked("warn", what, "free some space, or lower logging.total_bytes and audit.keep")
    return Looked("pass", f"{format_bytes(free)} free disk")


def check_folders(config: NodeConfig) -> Looked:
    """The node's own folder and its secrets: used by this user, and by no other."""
    folder = registry.node_dir(config.name)
    place = _existing(folder)
    if not os.access(place, os.W_OK | os.X_OK):
        raise NodeStartError(
            f"{place} cannot be written to by {_user()}",
            hint="start as its owner, or move the folders with KVOPS_HOME",
        )
    for file in (registry.token_file(config.name), folder / "tenant.secret"):
        if file.exists():
            check_secret(file)
    if not folder.is_dir():
        return Looked("pass", f"{folder} will be made")
    status = folder.stat()
    if status.st_uid != os.geteuid():
        what = f"{folder} belongs to the user {status.st_uid}, this is {_user()}"
        return Looked("warn", what, f"chown it, or start as {status.st_uid}")
    if status.st_mode & 0o077:
        what = f"{folder} is open to others (mode {stat.S_IMODE(status.st_mode):04o})"
        return Looked("warn", what, f"chmod 700 {folder}")
    return Looked("pass", str(folder))


def check_access(config: NodeConfig) -> Looked:
    """Raises ConfigError for keys or a certificate that cannot be used."""
    access = Access(config.server)
    parts = [f"{len(access.keys.keys)} API keys" if isinstance(access.keys, KeyRing) else "no keys"]
    parts += ["a certificate"] if access.certificate is not None else []
    return Looked("pass", ", ".join(parts))


def check_port(config: NodeConfig, name: Literal["port", "control_port"]) -> Looked:
    """Raises NodeStartError for one that is taken."""
    server = config.server
    port = server.port if name == "port" else server.control_port
    host = server.host if name == "port" else server.control_host
    if port == 0:
        return Looked("pass", f"any free one on {host}")
    if runs(config):
        return Looked("skip", f"the node {config.name} runs, and has its ports")
    bind(host, port, f"server.{name} ({_OPTIONS[name]})").close()
    return Looked("pass", f"{host}:{port} is free")


def check_control(config: NodeConfig) -> Looked:
    """The control plane has no TLS, and whoever has its token has the node."""
    host = config.server.control_host
    if not is_loopback(host):
        what = f"server.control_host = {host!r}: the admin token and all it reads go over the network in clear text"
        remedy = "server.control_host: 127.0.0.1, and reach it through an SSH tunnel"
        return Looked("warn", what, remedy)
    return Looked("pass", "on loopback only")


def runs(config: NodeConfig) -> bool:
    """Whether a node of the name runs, which has what is looked for."""
    record = registry.read(config.name)
    return record is not None and record.alive()


def _existing(path: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    return next(each for each in (path, *path.parents) if each.is_dir())


def _user() -> str:
    return f"user {os.geteuid()}"

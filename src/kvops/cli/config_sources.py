"""Where settings are for a command: in a file, in a version, in a node that runs; and how they get into force."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvops import registry
from kvops.cli.local_node import call
from kvops.config.history import History, Version, user
from kvops.config.live import changes
from kvops.config.load import LoadedConfig, load_config, load_document
from kvops.config.next_start import as_json, change_rows, next_start, overridden
from kvops.config.schema import NodeConfig
from kvops.errors import ConfigError, NodeError, RequestError, UsageError
from kvops.registry import NodeRecord

RUNNING = "running"
_VERSION = re.compile(r"v?([1-9]\d{0,8})")
_DEFAULT_NAME: str = NodeConfig.model_fields["name"].default


def name_of(node: str | None) -> str:
    """The node meant: named, the only one that runs, else the default name. Raises UsageError with several."""
    if node is not None:
        registry.node_dir(node)
        return node
    return registry.the_only_one().name if registry.running() else _DEFAULT_NAME


def number_of(text: str) -> int:
    """Raises UsageError."""
    found = _VERSION.fullmatch(text)
    if found is None:
        raise UsageError(f"{text!r} is no version", hint="write it as 3 or v3")
    return int(found[1])


def settings_of(text: str, node: str | None) -> NodeConfig:
    """Of a file, a version or `running`. Raises ConfigError, UsageError, NodeNotFound."""
    if text == RUNNING:
        record = _alive(name_of(node))
        if record is None:
            raise UsageError(f"{name_of(node)} does not run", hint="name a version or a file")
        return NodeConfig.model_validate(call(record, "GET", "/control/config")["config"])
    if Path(text).exists() or not _VERSION.fullmatch(text):
        return load_config(Path(text)).config
    history = History.of(name_of(node))
    version = history.version(number_of(text))
    return load_document(history.document(version), f"version {version.id}").config


def apply_to(node: str | None, document: dict[str, Any], note: str) -> dict[str, Any]:
    """Through the node that runs, else into its history for the next start."""
    name = name_of(node)
    record = _alive(name)
    if record is not None:
        body = {"document": document, "author": user(), "note": note}
        return {"node": name, "running": True} | call(record, "POST", "/control/reload", body)
    loaded = load_document({"name": name, **document}, "file", _options(name))
    if loaded.config.name != name:
        raise UsageError(
            f"the file is of the node {loaded.config.name!r}, not of {name!r}",
            hint="leave --node out, or correct `name` in the file",
        )
    return _kept(name, loaded, note)


def roll_back(node: str | None, number: int | None, note: str) -> dict[str, Any]:
    """As `apply_to`, of a version; by default of the last good one before the current."""
    name = name_of(node)
    record = _alive(name)
    if record is not None:
        body = {"version": number, "author": user(), "note": note}
        return {"node": name, "running": True} | call(record, "POST", "/control/rollback", body)
    history = History.of(name)
    target = history.last_good() if number is None else history.version(number)
    options = {"name": name} | _options(name)
    loaded = load_document(history.document(target), f"version {target.id}", options)
    note = note or f"rollback to v{target.origin}"
    return _kept(name, loaded, note, restores=target.origin)


def _kept(
    name: str, loaded: LoadedConfig, note: str, restores: int | None = None
) -> dict[str, Any]:
    history = History.of(name)
    last = history.current()
    before = None if last is None else _settings(history, last)
    if last is not None and last.file is not None:
        loaded = replace(loaded, file=Path(last.file))
    version = history.record(loaded, user(), note, restores)
    rows = change_rows(changes(before, loaded.config) if before is not None else [])
    told = next_start(loaded, history.current_file)
    return {
        "node": name,
        "running": False,
        "version": version.id,
        "version_hash": version.config_hash,
        "previous_hash": None if last is None else last.config_hash,
        "before": None if last is None else last.config_hash,
        "after": version.config_hash,
        "live": [],
        "restart_needed": rows,
        "overridden": overridden(loaded),
        "next_start": as_json(told),
        "start": told.command,
    }


def _settings(history: History, version: Version) -> NodeConfig | None:
    """None for a version that is not valid any more: that is no obstacle to leaving it."""
    try:
        document, origin = history.document(version), f"version {version.id}"
        return load_document(document, origin, version.options).config
    except ConfigError:
        return None


def _options(name: str) -> dict[str, Any]:
    """What the command line of the node's last start said: the next start will say it again."""
    last = History.of(name).current()
    return {} if last is None else last.options


def restart_pending(name: str) -> bool:
    """Whether a node runs that does not have all of its current version in force; False where none answers."""
    record = _alive(name)
    try:
        return record is not None and bool(call(record, "GET", "/control/config")["restart_needed"])
    except (NodeError, RequestError):
        return False


def _alive(name: str) -> NodeRecord | None:
    record = registry.read(name)
    return record if record is not None and record.alive() else None

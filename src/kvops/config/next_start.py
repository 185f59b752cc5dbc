"""What the next start of a node takes, since it reads its own file and not the version in force; and how to start it
from that version.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kvops.config.keys import values_of
from kvops.config.live import Change, changes
from kvops.config.load import LoadedConfig, flat, load_document, read_document
from kvops.config.masking import masked
from kvops.config.schema import NodeConfig
from kvops.errors import ConfigError

OPTIONS = {
    "name": "--name",
    "model.name": "--model",
    "server.host": "--host",
    "server.port": "--port",
    "server.control_port": "--control-port",
}
"""Of `kvops node start`, by the setting that each gives."""


@dataclass(frozen=True)
class NextStart:
    command: str
    """Starts the node from the version in force."""
    file: str | None
    """What it was started with; None where it was started without a file."""
    differs: Sequence[Change] = ()
    """From the version to the file: what a start as the last one would take back."""
    problem: str = ""
    """Why the file cannot be compared."""


def next_start(version: LoadedConfig, current: Path) -> NextStart:
    """`current`: the file that holds what the version says."""
    command = start_command(current, version.overrides)
    file = None if version.file is None else str(version.file)
    try:
        document = {} if version.file is None else read_document(version.file)
        found = load_document(document, f"file {file}", version.overrides)
    except ConfigError as error:
        return NextStart(command, file, problem=error.message)
    return NextStart(command, file, changes(version.config, found.config))


def start_command(file: Path, overrides: Mapping[str, Any]) -> str:
    command = ["kvops", "node", "start", "-c", str(file)]
    for key, value in overrides.items():
        command += [OPTIONS[key], str(value)] if key in OPTIONS else []
    return shlex.join(command)


def as_json(told: NextStart) -> dict[str, Any]:
    return {
        "command": told.command,
        "file": told.file,
        "differs": change_rows(told.differs),
        "problem": told.problem,
    }


def change_rows(found: Sequence[Change]) -> list[dict[str, Any]]:
    return [
        {"key": change.key, "before": masked(change.before), "after": masked(change.after)}
        for change in found
    ]


def overridden(loaded: LoadedConfig) -> dict[str, str]:
    """Key → origin, where the command line or the environment gives another value than the document."""
    try:
        given = values_of(NodeConfig.model_validate(dict(loaded.document)))
    except ValidationError:  # what is not valid is overridden, else it were refused
        given = {}
    found = values_of(loaded.config)
    return {
        key: loaded.origins[key]
        for key, _ in flat(loaded.document)
        if loaded.origins.get(key, "").startswith(("command line", "environment", "credential"))
        and (key not in given or given[key] != found[key])
    }

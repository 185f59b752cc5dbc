"""Files that a run reads as it goes on: each machine that takes part needs them, at the same path and alike."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kvops.errors import UsageError
from kvops.load import trace
from kvops.load.pacing import Pacing
from kvops.load.runs import RunInfo
from kvops.load.scenarios import Scenario
from kvops.paths import open_regular

_LENGTHS = "file:"


def shared(scenario: Scenario, options: Mapping[str, Any], pacing: Pacing) -> list[str]:
    """Paths of those that must be alike everywhere: a trace, and the lengths of prompts and answers."""
    return [path for _, path in _shared(scenario, options, pacing)]


def own(scenario: Scenario, options: Mapping[str, Any]) -> list[str]:
    """Paths of those that each machine has of its own: keys."""
    return [
        options[name]
        for name, option in scenario.options.items()
        if option.type in ("file", "keys") and options.get(name) is not None
    ]


def digests(scenario: Scenario, options: Mapping[str, Any], pacing: Pacing) -> dict[str, str]:
    """SHA-256 by path. Raises UsageError."""
    return {path: _digest(flag, path) for flag, path in _shared(scenario, options, pacing)}


def check(scenario: Scenario, info: RunInfo) -> None:
    """Raises UsageError where this machine lacks a file of the run, or has another one at its path."""
    for flag, path in _shared(scenario, info.options, info.pacing):
        if info.inputs and _digest(flag, path) != info.inputs.get(path):
            raise UsageError(
                f"{flag} {path} is another file here than where the run was started",
                hint="copy it from there to the same path",
            )
    if info.pacing.trace:
        trace.read(info.pacing.trace)
    for name, option in scenario.options.items():
        value = info.options.get(name)
        if option.type in ("lengths", "file", "keys") and value is not None:
            option.parse(name.replace("_", "-"), value)


def _shared(
    scenario: Scenario, options: Mapping[str, Any], pacing: Pacing
) -> Iterator[tuple[str, str]]:
    """Flag and path."""
    if pacing.trace:
        yield "--trace", pacing.trace
    for name, option in scenario.options.items():
        value = options.get(name)
        if option.type == "lengths" and isinstance(value, str) and value.startswith(_LENGTHS):
            yield "--" + name.replace("_", "-"), value.removeprefix(_LENGTHS)


def _digest(flag: str, path: str) -> str:
    try:
        with open_regular(Path(path)) as file:
            found = hashlib.sha256()
            for piece in iter(lambda: file.read(2**20), b""):
                found.update(piece)
            return found.hexdigest()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(
            f"{flag} {path}: {reason}", hint="each machine that takes part needs it at that path"
        ) from error

"""A YAML document whose faults are named by line: what is wrong, where it stands and what stands there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from pydantic import ValidationError

FAULTS = (yaml.YAMLError, RecursionError)
Loc = tuple[str | int, ...]
_MOST = 20
"""Faults told at once."""


def load(text: str) -> Any:
    """Raises what is in FAULTS."""
    return yaml.safe_load(text)


def faults(error: Exception, text: str = "") -> str:
    """All that is wrong, each with its line in `text`, its field and its value."""
    if isinstance(error, ValidationError):
        found = error.errors(include_url=False)
        told = [_fault(fault, text) for fault in found[:_MOST]]
        return "; ".join([*told, *([f"and {len(found) - _MOST} more"] if found[_MOST:] else [])])
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return " ".join(str(error).split())[:300]


def _fault(fault: Mapping[str, Any], text: str) -> str:
    where = ".".join(str(part) for part in fault["loc"]) or "document"
    line = line_of(text, fault["loc"]) if text else None
    where = f"line {line}, {where}" if line else where
    said = fault["msg"].removeprefix("Value error, ")
    what = said[:1].lower() + said[1:]
    if fault["type"] == "extra_forbidden":
        return f"{where}: not known"
    if fault["type"] == "missing" or not isinstance(fault["input"], str | int | float):
        return f"{where}: {what}"
    return f"{where}: {fault['input']!r}: {what}"


def line_of(text: str, loc: Sequence[str | int]) -> int | None:
    """Line of what `loc` leads to, or of the last thing on the way that is there. Never raises for YAML that loads."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    line: int | None = None
    for part in loc:
        step = _step(node, part)
        if step is None:
            return line
        line, node = step
    return line


def _step(node: yaml.Node | None, part: str | int) -> tuple[int, yaml.Node] | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        found = node.value[part]
        return found.start_mark.line + 1, found
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if isinstance(key, yaml.ScalarNode) and key.value == part:
            return key.start_mark.line + 1, value
    return None


def places(text: str, name: str) -> dict[tuple[str, ...], str]:
    """Where each check of a profile, and each parameter of it, stands: `mine.yaml line 7`."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    checks = _step(root, "checks")
    found: dict[tuple[str, ...], str] = {}
    for entry in checks[1].value if checks and isinstance(checks[1], yaml.SequenceNode) else ():
        ident = _step(entry, "id")
        if ident is None or not isinstance(ident[1], yaml.ScalarNode):
            continue
        found[(ident[1].value,)] = f"{name} line {ident[0]}"
        parameters = _step(entry, "parameters")
        for key, _ in (
            parameters[1].value
            if parameters and isinstance(parameters[1], yaml.MappingNode)
            else ()
        ):
            if isinstance(key, yaml.ScalarNode):
                found[(ident[1].value, key.value)] = f"{name} line {key.start_mark.line + 1}"
    return found

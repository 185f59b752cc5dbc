"""What a setting may be, in words, made from the schema: the bounds in an error are those that are checked."""

from __future__ import annotations

from functools import cache
from typing import Any

from kvops.config.schema import NodeConfig
from kvops.units import format_bytes, format_duration

_KINDS = {"integer": "a whole number", "number": "a number", "boolean": "true or false"}
_FORMATS = {
    "duration": ("a time such as 20ms, 60s or 5m", format_duration),
    "size": ("a size such as 512MiB or 8GiB", format_bytes),
}


def wanted(key: str) -> str:
    """`a whole number from 1 to 1024`; empty for a setting of which the schema says no more than its type."""
    schema = _schema_of(key)
    if "enum" in schema:
        return f"one of {', '.join(str(value) for value in schema['enum'])}"
    if "pattern" in schema:
        return str(schema.get("description", f"text like {schema['pattern']}"))
    if schema.get("format") in _FORMATS:
        kind, shown = _FORMATS[schema["format"]]
        return f"{kind}{_bounds(schema, shown)}"
    return f"{_KINDS.get(schema.get('type', ''), 'text')}{_bounds(schema, _plain)}"


def _schema_of(key: str) -> dict[str, Any]:
    """The JSON schema of one setting; of `… | None` that of the value."""
    document = _document()
    schema: dict[str, Any] = document
    for part in key.split("."):
        schema = schema["properties"][part]
        if "$ref" in schema:
            schema = document["$defs"][schema["$ref"].rpartition("/")[2]]
    return dict(schema["anyOf"][0]) if "anyOf" in schema else schema


@cache
def _document() -> dict[str, Any]:
    return NodeConfig.model_json_schema()


def _bounds(schema: dict[str, Any], shown: Any) -> str:
    low = schema.get("minimum", schema.get("ge"))
    high = schema.get("maximum", schema.get("le"))
    above = schema.get("exclusiveMinimum", schema.get("gt"))
    below = schema.get("exclusiveMaximum", schema.get("lt"))
    if low is not None and high is not None:
        return f" from {shown(low)} to {shown(high)}"
    parts = [
        f"{word} {shown(bound)}"
        for word, bound in (
            ("from", low),
            ("above", above),
            ("at most", high),
            ("below", below),
        )
        if bound is not None
    ]
    return f", {' and '.join(parts)}" if parts else ""


def _plain(bound: float) -> str:
    return f"{bound:g}" if isinstance(bound, float) else str(bound)

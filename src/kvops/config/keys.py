"""The settings as a flat list of dotted keys: what each may hold, and what it is called elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from kvops.config.schema import NodeConfig

PREFIX = "KVOPS_"


def leaf_keys() -> list[str]:
    """Every setting as a dotted key, in the order of the schema."""
    return list(_leaves())


def sections() -> set[str]:
    """Dotted keys of what holds settings and is none itself."""
    return {key[:at] for key in leaf_keys() for at, letter in enumerate(key) if letter == "."}


def holds_table(key: str) -> bool:
    """Whether the setting is a mapping or a list."""
    return any(origin in str(_leaves()[key]) for origin in ("dict[", "tuple[", "list["))


def variable_of(key: str) -> str:
    return PREFIX + key.upper().replace(".", "__")


def names_of(model: type[BaseModel]) -> dict[str | int, Any]:
    """Type by key, as a file spells it."""
    return {field.alias or name: field.annotation for name, field in model.model_fields.items()}


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """Those that a value of the type consists of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in models_in(inner)]


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys as sections."""
    document: dict[str, Any] = {}
    for key, value in values.items():
        *sections, name = key.split(".")
        inner = document
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[name] = value
    return document


def values_of(config: NodeConfig) -> dict[str, Any]:
    """Dotted key → value, as the schema has it."""
    return dict(_values(config, ""))


def map_paths(key: str, value: Any, change: Callable[[str], str]) -> Any:
    """`value` of a setting, as a file gives it, with each text that is a path changed."""
    return _map(value, _leaves()[key], change)


@cache
def _leaves() -> dict[str, Any]:
    return dict(_walk(NodeConfig, ""))


def _walk(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, annotation in names_of(model).items():
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from _walk(annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", annotation


def _values(section: BaseModel, prefix: str) -> Iterator[tuple[str, Any]]:
    for attribute, field in type(section).model_fields.items():
        key, value = prefix + (field.alias or attribute), getattr(section, attribute)
        if key in _leaves():
            yield key, value
        else:
            yield from _values(value, f"{key}.")


def _map(value: Any, annotation: Any, change: Callable[[str], str]) -> Any:
    if annotation is Path:
        return change(value) if isinstance(value, str) else value
    if isinstance(value, dict) and get_origin(annotation) is dict:
        return {key: _map(one, get_args(annotation)[1], change) for key, one in value.items()}
    if isinstance(value, dict) and models_in(annotation) == [annotation]:
        inner = names_of(annotation)
        return {key: _map(one, inner.get(key), change) for key, one in value.items()}
    if isinstance(value, list) and get_origin(annotation) is tuple:
        return [_map(one, get_args(annotation)[0], change) for one in value]
    for one in get_args(annotation):  # of a union, or of what is annotated
        value = _map(value, one, change)
    return value

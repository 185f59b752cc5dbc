"""From command line, environment, file and defaults to one checked `NodeConfig`, with the origin of each value.

Precedence: command line > `KVOPS_SECTION__KEY` > file > default. An unknown key is an error, never ignored.
"""

from __future__ import annotations

import difflib
import hashlib
import ipaddress
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from kvops.config.schema import NodeConfig
from kvops.errors import ConfigError

MAX_FILE_BYTES = 1 << 20
_PREFIX = "KVOPS_"
KEY_VARIABLES = ("KVOPS_API_KEYS", "KVOPS_API_KEYS_FILE")


@dataclass(frozen=True)
class LoadedConfig:
    config: NodeConfig
    origins: dict[str, str]
    """Dotted key → `command line`, `environment KVOPS_…`, `file <path>` or `default`."""

    @property
    def config_hash(self) -> str:
        """First 12 hex digits of the SHA-256 of the settings as canonical JSON."""
        text = json.dumps(
            self.config.model_dump(mode="json"), sort_keys=True, separators=(",", ":")
        )
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def load_config(file: Path | None, overrides: Mapping[str, Any] | None = None) -> LoadedConfig:
    """`overrides` maps dotted keys to values of the command line; a None is no override.

    Raises ConfigError that names the key, its value and what is allowed.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    layers = [
        ({} if file is None else dict(_flatten(read_yaml(file))), f"file {file}"),
        (_from_environment(os.environ), "environment"),
        (
            {key: value for key, value in (overrides or {}).items() if value is not None},
            "command line",
        ),
    ]
    for layer, origin in layers:
        for key, value in layer.items():
            _check_key(key, origin)
            values[key] = value
            origins[key] = f"{origin} {_variable(key)}" if origin == "environment" else origin
    config = _build(values, origins)
    _deny_open_bind(config)
    return LoadedConfig(config, {key: origins.get(key, "default") for key in leaf_keys()})


def leaf_keys(model: type[BaseModel] = NodeConfig, prefix: str = "") -> list[str]:
    """Every setting as a dotted key, in the order of the schema."""
    keys: list[str] = []
    for attribute, field in model.model_fields.items():
        name, nested = field.alias or attribute, field.annotation
        if isinstance(nested, type) and issubclass(nested, BaseModel):
            keys += leaf_keys(nested, f"{prefix}{name}.")
        else:
            keys.append(prefix + name)
    return keys


def read_yaml(file: Path) -> dict[str, Any]:
    """A mapping. Raises ConfigError for a file that is missing, too large, no mapping, or plays tricks."""
    try:
        with file.open("rb") as handle:
            data = handle.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"cannot read {file}: {error.strerror}", hint="name a readable YAML file"
        ) from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{file} is over the bound of {MAX_FILE_BYTES} bytes")
    try:
        document = yaml.load(data, _StrictLoader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{file} is not valid YAML: {_first_lines(error)}") from None
    except (RecursionError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {type(error).__name__}") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError(
            f"{file} is no mapping of settings", hint="for example `model: {name: smollm2-135m}`"
        )
    return document


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader without aliases (they grow exponentially) and without duplicate keys (one would be lost)."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "aliases are not allowed here", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key.value!r} appears twice", key.start_mark
                )
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def _first_lines(error: yaml.YAMLError) -> str:
    return " ".join(str(error).split())[:200]


def _flatten(mapping: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in mapping.items():
        if isinstance(value, Mapping) and prefix + str(key) not in leaf_keys():
            yield from _flatten(value, f"{prefix}{key}.")
        elif value is not None or prefix + str(key) not in NodeConfig.model_fields:
            yield prefix + str(key), value


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """`KVOPS_SERVER__PORT=8000` → `server.port`. A variable without `__` is a setting only if its name is one."""
    found: dict[str, Any] = {}
    for name, text in environment.items():
        key = name.removeprefix(_PREFIX).lower().replace("__", ".")
        if name.startswith(_PREFIX) and ("." in key or key in leaf_keys()):
            found[key] = None if text in ("", "null") else text
    return found


def _variable(key: str) -> str:
    return _PREFIX + key.upper().replace(".", "__")


def _check_key(key: str, origin: str) -> None:
    if key in leaf_keys():
        return
    if origin == "environment":
        raise ConfigError(
            f"{_variable(key)} is not a setting", hint=_nearest(key, environment=True)
        )
    if key in NodeConfig.model_fields:
        raise ConfigError(f"{key} ({origin}) is a section", hint=f"give its keys: {key}: {{…}}")
    raise ConfigError(f"{key} ({origin}) is not a setting", hint=_nearest(key))


def _nearest(key: str, *, environment: bool = False) -> str:
    by_key = difflib.get_close_matches(key, leaf_keys(), 1, 0.6)
    last = key.rpartition(".")[2]
    by_name = [name for name in leaf_keys() if name.rpartition(".")[2] == last]
    near = (by_name or by_key or [""])[0]
    if not near:
        return f"the sections are {', '.join(NodeConfig.model_fields)}"
    return f"did you mean {_variable(near) if environment else near}?"


def _build(values: Mapping[str, Any], origins: Mapping[str, str]) -> NodeConfig:
    nested: dict[str, Any] = {}
    for key, value in values.items():
        *sections, name = key.split(".")
        inner = nested
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[name] = value
    try:
        return NodeConfig.model_validate(nested)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        known = next(
            (name for name in leaf_keys() if key == name or key.startswith(name + ".")), key
        )
        reason = first["msg"].removeprefix("Value error, ")
        origin = origins.get(known, "default")
        named = key if isinstance(values.get(known), Mapping) else known
        raise ConfigError(f"{named} = {first['input']!r} ({origin}): {reason}") from None


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _deny_open_bind(config: NodeConfig) -> None:
    has_keys = config.server.api_keys_file is not None or any(
        os.environ.get(name) for name in KEY_VARIABLES
    )
    if not is_loopback(config.server.host) and not has_keys:
        raise ConfigError(
            f"server.host = {config.server.host!r} is reachable from other machines, and no API keys are configured",
            hint="set server.api_keys_file or KVOPS_API_KEYS_FILE, or bind 127.0.0.1",
        )

"""From command line, environment, file and defaults to one checked `NodeConfig`, with the origin of each value.

Precedence: command line > `KVOPS_SECTION__KEY` > file > default. An unknown key is an error, never ignored, and
what is wrong is said all at once.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kvops.config.environment import KEY_VARIABLES, from_environment
from kvops.config.faults import Fault, bad_value, both_spellings, error_of, no_json, unknown_key
from kvops.config.files import beside, read_yaml
from kvops.config.foreign import respelled
from kvops.config.keys import leaf_keys, map_paths, nested, sections
from kvops.config.plain import not_plain
from kvops.config.schema import NodeConfig
from kvops.errors import ConfigError

_POOL_SIZES = ("kv_cache.blocks", "kv_cache.bytes", "kv_cache.memory_fraction")


@dataclass(frozen=True)
class LoadedConfig:
    config: NodeConfig
    origins: dict[str, str]
    """Dotted key → `command line`, `environment KVOPS_…`, `credential kvops.…`, `file <path>`, `reload v<N>` or
    `default`."""
    document: Mapping[str, Any] = field(default_factory=dict)
    """What the file says, its paths absolute."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """What the command line says, by dotted key."""
    file: Path | None = None
    """Where `document` is from, absolute; None without a file."""

    @property
    def config_hash(self) -> str:
        """First 12 hex digits of the SHA-256 of the settings as canonical JSON."""
        text = json.dumps(
            self.config.model_dump(mode="json"), sort_keys=True, separators=(",", ":")
        )
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class _Layer:
    values: Mapping[str, Any]
    origins: Mapping[str, str]


def load_config(file: Path | None, overrides: Mapping[str, Any] | None = None) -> LoadedConfig:
    """`overrides` maps dotted keys to values of the command line; a None is no override.

    Raises ConfigError that names each wrong key, its value, its origin and what is allowed.
    """
    if file is None:
        return load_document({}, "file None", overrides)
    loaded = load_document(read_document(file), f"file {file}", overrides)
    return replace(loaded, file=file.absolute())


def load_document(
    document: Mapping[str, Any], origin: str, overrides: Mapping[str, Any] | None = None
) -> LoadedConfig:
    """As `load_config`, of settings that were read already; `origin` says where. Raises ConfigError."""
    _deny_no_json(document, origin)
    given = {key: value for key, value in (overrides or {}).items() if value is not None}
    layers, faults = _layers(document, origin, given)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        faults += _pool_faults(layer)
        if any(key in layer.values for key in _POOL_SIZES):
            for key in _POOL_SIZES:
                values.pop(key, None)
                origins.pop(key, None)
        for key, value in layer.values.items():
            if key not in leaf_keys():
                faults.append(unknown_key(key, layer.origins[key]))
                continue
            values[key], origins[key] = value, layer.origins[key]
    config, wrong = _build(values, origins)
    faults += wrong
    if config is None or faults:
        raise error_of(faults)
    _check_keys_file(config, origins)
    _deny_open_bind(config)
    known = {key: origins.get(key, "default") for key in leaf_keys()}
    return LoadedConfig(config, known, document, given)


def check_document(document: Mapping[str, Any], origin: str) -> None:
    """What can be said of settings without the machine that they are for. Raises ConfigError."""
    _deny_no_json(document, origin)
    given, twice = respelled(dict(flat(document)))
    origins = dict.fromkeys(given, origin)
    faults = [unknown_key(key, origin) for key in given if key not in leaf_keys()]
    faults += [*both_spellings(twice, origin), *_pool_faults(_Layer(given, origins))]
    known = {key: value for key, value in given.items() if key in leaf_keys()}
    faults += _build(known, origins)[1]
    if faults:
        raise error_of(faults)


def read_document(file: Path) -> dict[str, Any]:
    """What a file says, its paths absolute; whether that is valid is not looked at. Raises ConfigError."""
    found = dict(flat(read_yaml(file)))
    for key in found.keys() & set(leaf_keys()):
        found[key] = map_paths(key, found[key], lambda path: _placed(file, path))
    model = found.get("model.name")
    if isinstance(model, str) and ("/" in model or model.endswith(".gguf")):
        found["model.name"] = _placed(file, model)
    return nested(found)


def _placed(file: Path, path: str) -> str:
    """What can be no path stays as it is, for the schema to refuse by name."""
    if not path or "\0" in path:
        return path
    try:
        return beside(file, path)
    except RuntimeError:
        raise ConfigError(
            f"{path!r} (file {file}): nobody here has that home", hint="write the path without ~"
        ) from None


def _deny_no_json(document: Mapping[str, Any], origin: str) -> None:
    faults = [
        no_json(key, why, origin)
        for name, value in document.items()
        for key, why in not_plain(str(name), value)
    ]
    if faults:
        raise error_of(faults)


def _layers(
    document: Mapping[str, Any], origin: str, overrides: Mapping[str, Any]
) -> tuple[list[_Layer], list[Fault]]:
    """The weakest first."""
    file, twice = respelled(dict(flat(document)))
    environment = from_environment(os.environ)
    layers = [
        _Layer(file, dict.fromkeys(file, origin)),
        _Layer(environment.values, environment.origins),
        _Layer(overrides, dict.fromkeys(overrides, "command line")),
    ]
    return layers, [*both_spellings(twice, origin), *environment.faults]


def flat(mapping: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key → value of a document, tables whole."""
    for key, value in mapping.items():
        name = f"{prefix}{key}"
        if name in sections() and (value is None or value == {}):
            continue
        if isinstance(value, Mapping) and value and name not in leaf_keys():
            yield from flat(value, f"{name}.")
        else:
            yield name, value


def _pool_faults(layer: _Layer) -> list[Fault]:
    """One place that gives two sizes contradicts itself; a stronger origin replaces the size of a weaker one."""
    given = [key for key in _POOL_SIZES if layer.values.get(key) is not None]
    if len(given) < 2:
        return []
    both = " and ".join(f"{key} = {layer.values[key]!r}" for key in given)
    origin = layer.origins[given[0]]
    where = "environment" if origin.startswith("environment") else origin
    return [Fault(f"{both} ({where}): the pool has one size", "leave one of them")]


def _build(
    values: Mapping[str, Any], origins: Mapping[str, str]
) -> tuple[NodeConfig | None, list[Fault]]:
    try:
        return NodeConfig.model_validate(nested(values)), []
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
        return None, [bad_value(dict(each), origins) for each in found]


def _check_keys_file(config: NodeConfig, origins: Mapping[str, str]) -> None:
    file = config.server.api_keys_file
    if file is not None and not file.is_file():
        origin = origins["server.api_keys_file"]
        raise ConfigError(
            f"server.api_keys_file = {str(file)!r} ({origin}): there is no such file",
            hint=f"kvops keys create --file {file} makes one; "
            "a path in a file is relative to that file",
        )


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
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

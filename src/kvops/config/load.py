"""From command line, environment, file and defaults to one checked `NodeConfig`, with the origin of each value.

Precedence: command line > `KVOPS_SECTION__KEY` > file > default. An unknown key is an error, never ignored, and
what is wrong is said all at once.
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

from pydantic import BaseModel, ValidationError

from kvops.config.files import beside, read_yaml
from kvops.config.schema import NodeConfig
from kvops.config.wanted import wanted
from kvops.errors import ConfigError

_PREFIX = "KVOPS_"
KEY_VARIABLES = ("KVOPS_API_KEYS", "KVOPS_API_KEYS_FILE")
NO_SETTINGS = {
    *KEY_VARIABLES, "KVOPS_HOME", "KVOPS_API_KEY", "KVOPS_API_KEY_FILE", "KVOPS_ADMIN_TOKEN",
    "KVOPS_ADMIN_TOKEN_FILE", "KVOPS_CONTROL_URL", "KVOPS_LOAD",
}  # fmt: skip
"""Variables that kvops reads elsewhere."""
_POOL_SIZES = ("kv_cache.blocks", "kv_cache.bytes", "kv_cache.memory_fraction")
_PATHS = ("server.api_keys_file",)


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


@dataclass(frozen=True)
class _Fault:
    what: str
    remedy: str


def load_config(file: Path | None, overrides: Mapping[str, Any] | None = None) -> LoadedConfig:
    """`overrides` maps dotted keys to values of the command line; a None is no override.

    Raises ConfigError that names each wrong key, its value, its origin and what is allowed.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    faults: list[_Fault] = []
    for origin, layer in _layers(file, overrides or {}):
        faults += _pool_faults(layer, origin)
        if any(key in layer for key in _POOL_SIZES):
            for key in _POOL_SIZES:
                values.pop(key, None)
                origins.pop(key, None)
        for key, value in layer.items():
            if key not in leaf_keys():
                faults.append(_unknown(key, origin))
                continue
            values[key] = value
            origins[key] = _origin_of(key, origin)
    config, wrong = _build(values, origins)
    faults += wrong
    if config is None or faults:
        raise _config_error(faults)
    _check_keys_file(config, origins)
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


def _layers(
    file: Path | None, overrides: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Origin and settings, the weakest first."""
    if file is not None:
        yield f"file {file}", _from_file(file)
    yield "environment", _from_environment(os.environ)
    yield "command line", {key: value for key, value in overrides.items() if value is not None}


def _from_file(file: Path) -> dict[str, Any]:
    found = dict(_flatten(read_yaml(file)))
    for key in _PATHS:
        if isinstance(found.get(key), str):
            found[key] = beside(file, found[key])
    model = found.get("model.name")
    if isinstance(model, str) and ("/" in model or model.endswith(".gguf")):
        found["model.name"] = beside(file, model)
    return found


def _flatten(mapping: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in mapping.items():
        if isinstance(value, Mapping) and prefix + str(key) not in leaf_keys():
            yield from _flatten(value, f"{prefix}{key}.")
        elif value is not None or prefix + str(key) not in NodeConfig.model_fields:
            yield prefix + str(key), value


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """`KVOPS_SERVER__PORT=8000` → `server.port`; what is no setting stays in, for it is a slip."""
    found: dict[str, Any] = {}
    for name, text in sorted(environment.items()):
        if name.startswith(_PREFIX) and name not in NO_SETTINGS:
            key = name.removeprefix(_PREFIX).lower().replace("__", ".")
            found[key] = None if text in ("", "null") else text
    return found


def _variable(key: str) -> str:
    return _PREFIX + key.upper().replace(".", "__")


def _origin_of(key: str, origin: str) -> str:
    return f"{origin} {_variable(key)}" if origin == "environment" else origin


def _unknown(key: str, origin: str) -> _Fault:
    if origin == "environment":
        return _Fault(f"{_variable(key)} is not a setting", _nearest(key, environment=True))
    if key in NodeConfig.model_fields:
        return _Fault(f"{key} ({origin}) is a section", f"give its keys: {key}: {{…}}")
    return _Fault(f"{key} ({origin}) is not a setting", _nearest(key))


def _nearest(key: str, *, environment: bool = False) -> str:
    flat = {name.replace(".", "_"): name for name in leaf_keys()}
    last = key.rpartition(".")[2]
    by_name = [name for name in leaf_keys() if name.rpartition(".")[2] == last]
    by_key = difflib.get_close_matches(key.replace(".", "_"), flat, 1, 0.6)
    near = (by_name or [flat[match] for match in by_key] or [""])[0]
    if not near:
        sections = f"the sections are {', '.join(NodeConfig.model_fields)}"
        return f"unset it; {sections}" if environment else sections
    return f"did you mean {_variable(near) if environment else near}?"


def _pool_faults(layer: Mapping[str, Any], origin: str) -> list[_Fault]:
    """One place that gives two sizes contradicts itself; a stronger origin replaces the size of a weaker one."""
    given = [key for key in _POOL_SIZES if layer.get(key) is not None]
    if len(given) < 2:
        return []
    both = " and ".join(f"{key} = {layer[key]!r}" for key in given)
    return [_Fault(f"{both} ({origin}): the pool has one size", "leave one of them")]


def _build(
    values: Mapping[str, Any], origins: Mapping[str, str]
) -> tuple[NodeConfig | None, list[_Fault]]:
    nested: dict[str, Any] = {}
    for key, value in values.items():
        *sections, name = key.split(".")
        inner = nested
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[name] = value
    try:
        return NodeConfig.model_validate(nested), []
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
        return None, [_bad_value(dict(each), origins) for each in found]


def _bad_value(found: Mapping[str, Any], origins: Mapping[str, str]) -> _Fault:
    at = ".".join(str(part) for part in found["loc"])
    key = next((name for name in leaf_keys() if at == name or at.startswith(name + ".")), at)
    origin = origins.get(key, "default")
    if at == key and key in leaf_keys():
        reason = f"expected {wanted(key)}"
    else:
        reason = found["msg"].removeprefix("Value error, ")
    return _Fault(f"{at} = {found['input']!r} ({origin}): {reason}", _remedy(origin))


def _remedy(origin: str) -> str:
    kind, _, where = origin.partition(" ")
    if kind == "file":
        return f"correct it in {where}"
    return f"correct or unset {where}" if kind == "environment" else "see kvops node start --help"


def _config_error(faults: list[_Fault]) -> ConfigError:
    if len(faults) == 1:
        return ConfigError(faults[0].what, hint=faults[0].remedy)
    lines = "".join(f"\n  {fault.what}; {fault.remedy}" for fault in faults)
    return ConfigError(
        f"{len(faults)} settings are not valid:{lines}",
        hint="correct each; configs/node.yaml and docs/operations.md show every setting",
    )


def _check_keys_file(config: NodeConfig, origins: Mapping[str, str]) -> None:
    file = config.server.api_keys_file
    if file is not None and not file.is_file():
        origin = origins["server.api_keys_file"]
        raise ConfigError(
            f"server.api_keys_file = {str(file)!r} ({origin}): there is no such file",
            hint="name a YAML list of {id, tenant, sha256}, mode 600; "
            "a path in a file is relative to that file",
        )


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

"""What is wrong with given settings, in words: the key, its value, where it came from, and the way out."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvops.config.foreign import IN_TENANT, SPELLINGS, meant
from kvops.config.keys import leaf_keys, models_in, names_of, sections, variable_of
from kvops.config.schema import NodeConfig
from kvops.config.wanted import wanted
from kvops.errors import ConfigError

_CUTOFF = 0.6
_ONE_ENGINE = "this version starts no engine but its own, builtin"
_OTHER_ENGINES = (
    "leave engine out; a vLLM or other server that runs already is gated and loaded from outside: "
    "kvops verify --node http://HOST:PORT, kvops load run SCENARIO --node http://HOST:PORT"
)


@dataclass(frozen=True)
class Fault:
    what: str
    remedy: str


def unknown_key(key: str, origin: str) -> Fault:
    if key in sections():
        return Fault(f"{key} ({origin}) is a section", f"give its keys: {key}: {{…}}")
    return Fault(f"{key} ({origin}) is not a setting", _nearest(key))


def unknown_variable(name: str, key: str) -> Fault:
    for leaf in leaf_keys():
        if key.startswith(leaf + "."):
            remedy = f"give {leaf} in the file, or whole as JSON in {variable_of(leaf)}"
            return Fault(f"{name} is not a setting", remedy)
    return Fault(f"{name} is not a setting", _nearest(key, environment=True))


def bad_value(found: Mapping[str, Any], origins: Mapping[str, str]) -> Fault:
    """Of one error of pydantic."""
    at = ".".join(str(part) for part in found["loc"])
    key = next((name for name in leaf_keys() if at == name or at.startswith(name + ".")), at)
    origin = origins.get(key, "default")
    if found["type"] == "extra_forbidden":
        return Fault(f"{at} ({origin}) is not a setting", _nearest_field(found["loc"]))
    if key == "engine":
        return Fault(f"engine = {found['input']!r} ({origin}): {_ONE_ENGINE}", _OTHER_ENGINES)
    if at == key and key in leaf_keys():
        reason = f"expected {wanted(key)}"
    else:
        reason = found["msg"].removeprefix("Value error, ")
    return Fault(f"{at} = {found['input']!r} ({origin}): {reason}", _remedy(origin))


def both_spellings(keys: Iterable[str], origin: str) -> list[Fault]:
    return [
        Fault(f"{key} and {SPELLINGS[key]} ({origin}) are the same setting", "leave one of them")
        for key in keys
    ]


def no_json(key: str, why: str, origin: str) -> Fault:
    return Fault(f"{key} ({origin}): {why}", _remedy(origin))


def error_of(faults: Sequence[Fault]) -> ConfigError:
    if len(faults) == 1:
        return ConfigError(faults[0].what, hint=faults[0].remedy)
    lines = "".join(f"\n  {fault.what}; {fault.remedy}" for fault in faults)
    return ConfigError(
        f"{len(faults)} settings are not valid:{lines}",
        hint="correct each; configs/node.yaml and docs/operations.md show every setting",
    )


def _nearest(key: str, *, environment: bool = False) -> str:
    section, _, name = key.rpartition(".")
    if section == "tenant_defaults" and name in IN_TENANT:
        return IN_TENANT[name]
    if (other := meant(key)) is not None:
        ours, word = other
        if not ours:
            return word
        setting = variable_of(ours) if environment else ours
        return f"did you mean {setting}?{' ' * bool(word)}{word}"
    flat = {name.replace(".", "_"): name for name in leaf_keys()}
    by_name = [leaf for leaf in leaf_keys() if leaf.rpartition(".")[2] == name]
    by_key = difflib.get_close_matches(key.replace(".", "_"), flat, 1, _CUTOFF)
    near = (by_name or [flat[match] for match in by_key] or [""])[0]
    if not near:
        sections = f"the sections are {', '.join(NodeConfig.model_fields)}"
        return f"unset it; {sections}" if environment else sections
    return f"did you mean {variable_of(near) if environment else near}?"


def _nearest_field(loc: Sequence[str | int]) -> str:
    """Within a table, such as one tenant of `tenants`."""
    names: list[str] = []
    here: list[Any] = [NodeConfig]
    for part in loc[:-1]:
        fields = [names_of(model)[part] for model in here if part in names_of(model)]
        here = [model for field in fields for model in models_in(field)] or here
    for model in here:
        names += map(str, names_of(model))
    if loc[0] in ("tenants", "tenant_defaults") and loc[-1] in IN_TENANT:
        return IN_TENANT[str(loc[-1])]
    near = difflib.get_close_matches(str(loc[-1]), names, 1, _CUTOFF)
    return f"did you mean {near[0]}?" if near else f"the keys here are {', '.join(names)}"


def _remedy(origin: str) -> str:
    kind, _, where = origin.partition(" ")
    if kind == "file":
        return f"correct it in {where}"
    if kind == "reload":
        return "correct it in what was applied"
    if kind in ("environment", "credential"):
        return f"correct or unset {where}"
    return "see kvops node start --help"

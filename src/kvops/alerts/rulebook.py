"""From the built-in rules, a file and the node's settings to the rules in force. All that is wrong is said at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, TypeAdapter, ValidationError

from kvops.alerts.rules import DRILL, BurnRule, RateRule, Rule
from kvops.config.files import read_yaml
from kvops.errors import ConfigError

MAX_RULES = 200
_ADAPTER: TypeAdapter[Rule] = TypeAdapter(Annotated[Rule, Field(discriminator="kind")])


def rulebook(
    *,
    file: Path | None = None,
    inline: Sequence[dict[str, Any]] = (),
    disabled: Iterable[str] = (),
    interval: float = 2.0,
) -> tuple[Rule, ...]:
    """The built-in rules, those of `file` and `inline`, the later in place of the earlier, less `disabled`.

    `interval`: seconds between two evaluations. Raises ConfigError that names each rule and field.
    """
    faults: list[str] = []
    rules = dict(_defaults())
    sources = [("alerts.rules", list(inline))]
    if file is not None:
        sources.insert(0, (str(file), _from_file(file)))
    for source, entries in sources:
        given, wrong = _read(source, entries)
        faults += wrong
        rules |= given
    faults += [f"alerts.disabled: {fault}" for fault in _unknown(disabled, rules)]
    faults += [fault for rule in rules.values() if (fault := _too_short(rule, interval))]
    if len(rules) > MAX_RULES:
        faults.append(f"{len(rules)} rules, the built-in ones included, are more than {MAX_RULES}")
    if faults:
        raise ConfigError(
            "alert rules are not valid:" + "".join(f"\n  {fault}" for fault in faults),
            hint="configs/alerts.yaml shows every kind of rule; kvops alerts export lists those in force",
        )
    return tuple(rule for name, rule in rules.items() if name not in set(disabled))


@cache
def _defaults() -> dict[str, Rule]:
    text = (resources.files("kvops.alerts") / "defaults.yaml").read_text()
    rules = [_ADAPTER.validate_python(entry) for entry in yaml.safe_load(text)["rules"]]
    return {rule.name: rule for rule in rules}


def _from_file(file: Path) -> list[Any]:
    document = read_yaml(file)
    entries = document.get("rules")
    if set(document) != {"rules"} or not isinstance(entries, list):
        raise ConfigError(
            f"{file} holds no list of rules",
            hint="write `rules:` and a list under it, and nothing else; configs/alerts.yaml is an example",
        )
    return entries


def _read(source: str, entries: list[Any]) -> tuple[dict[str, Rule], list[str]]:
    found: dict[str, Rule] = {}
    faults: list[str] = []
    for at, entry in enumerate(entries, 1):
        name = entry.get("name") if isinstance(entry, dict) else None
        where = f"{source}, rule {name if isinstance(name, str) else at}"
        try:
            rule = _ADAPTER.validate_python(entry)
        except ValidationError as error:
            faults += [f"{where}: {_fault(dict(each))}" for each in error.errors(include_url=False)]
            continue
        if rule.name in found:
            faults.append(f"{where}: the name is there twice")
        elif rule.name == DRILL:
            faults.append(f"{where}: this rule is the drill's and stays as it is")
        found[rule.name] = rule
    return found, faults


def _fault(error: dict[str, Any]) -> str:
    # The first part of the place is the kind, which is no field.
    place = [str(part) for part in error["loc"]]
    field = ".".join(place[1:] if len(place) > 1 else place if error["type"] == "missing" else [])
    said = error["msg"].removeprefix("Value error, ")
    if error["type"].startswith("union_tag"):
        return "kind: expected threshold, rate, absence or burn"
    if error["type"] == "extra_forbidden":
        return f"{field}: not a field of a rule of this kind"
    return f"{field}: {said[:1].lower()}{said[1:]}" if field else said


def _unknown(disabled: Iterable[str], rules: dict[str, Rule]) -> Iterable[str]:
    for name in disabled:
        if name == DRILL:
            yield f"{name} is the drill's and stays"
        elif name not in rules:
            near = difflib.get_close_matches(name, rules, 1, 0.5)
            yield f"no rule {name!r}" + (f"; did you mean {near[0]}?" if near else "")


def _too_short(rule: Rule, interval: float) -> str | None:
    """A rate needs two samples, so a window that holds fewer never says anything."""
    window = {RateRule: "window", BurnRule: "short"}.get(type(rule))
    if window is None or getattr(rule, window) >= 2 * interval:
        return None
    return f"rule {rule.name}: {window} must be at least twice alerts.interval ({interval:g} s)"

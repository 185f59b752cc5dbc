"""The scenarios kvops knows: a locust file each, with a YAML file beside it that says what it is for.

Reading them imports no locust: names, options and defaults come from the YAML alone.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

import kvops
from kvops.errors import ConfigError, UsageError
from kvops.units import format_whole, parse_duration

Kind = Literal["int", "float", "text", "ints", "floats", "duration"]
ReportName = Literal["recall", "injection", "ramp", "plain"]


class Option(BaseModel):
    """One option of a scenario. `minimum` and `maximum` bound each number of a list."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Kind
    default: Any = None
    """None: the option is off."""
    help: str
    minimum: float | None = None
    maximum: float | None = None
    in_context: bool = False
    """The prompt's length: with `max_tokens` it must fit into the node's context length."""
    note_when_off: str = ""
    """What a user should know before a run without this option."""

    def parse(self, name: str, text: str) -> Any:
        """Raises UsageError that names the option, the value and its bound."""
        try:
            match self.type:
                case "text":
                    return text
                case "duration":
                    return self._bounded(parse_duration(text))
                case "int" | "ints":
                    values: list[Any] = [self._number(part, int) for part in text.split(",")]
                case "float" | "floats":
                    values = [self._number(part, float) for part in text.split(",")]
        except ValueError as error:
            raise UsageError(
                f"--{name} {text}: {error}", hint=f"--{name} takes {self.form()}: {self.help}"
            ) from error
        if self.type in ("int", "float") and len(values) != 1:
            raise UsageError(
                f"--{name} {text}: takes one number",
                hint=f"--{name} takes {self.form()}: {self.help}",
            )
        return values if self.type.endswith("s") else values[0]

    def form(self) -> str:
        """What may be given, in words."""
        forms = {"int": "a whole number", "float": "a number", "text": "text", "ints": "whole numbers, 1,2,3",
                 "floats": "numbers, 1,2.5,3", "duration": "a time such as 20s or 5m"}  # fmt: skip
        low = "" if self.minimum is None else f" from {_shown(self.minimum)}"
        high = "" if self.maximum is None else f" to {_shown(self.maximum)}"
        return forms[self.type] + low + high

    def _number(self, text: str, kind: Callable[[str], float]) -> float:
        try:
            value = kind(text)
        except ValueError:
            what = "a whole number" if kind is int else "a number"
            raise ValueError(f"{text.strip()[:40]!r} is not {what}") from None
        return self._bounded(value)

    def _bounded(self, value: float) -> float:
        low, high = self.minimum, self.maximum
        if not (low is None or value >= low) or not (high is None or value <= high):
            raise ValueError(f"{_shown(value)} is out of bounds")
        return value


def _shown(value: float) -> str:
    """As it is typed: every digit, no separators."""
    return str(int(value)) if abs(value) < 1e15 and value == value // 1 else f"{value:g}"


class Scenario(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")
    purpose: str
    report: ReportName = "plain"
    users: Annotated[int, Field(ge=1, le=10_000)] = 1
    max_users: Annotated[int, Field(ge=1, le=10_000)] = 10_000
    duration: float | None = None
    """Bound of the whole run by default, seconds."""
    options: dict[str, Option] = {}
    path: Path
    """The locust file."""

    def defaults(self) -> dict[str, Any]:
        return {name: option.default for name, option in self.options.items()}

    def parse(self, arguments: Sequence[str]) -> dict[str, Any]:
        """All options with `--name value` or `--name=value` pairs taken in. Raises UsageError of all faults."""
        values, faults = self.defaults(), []
        for flag, name, text in self._pairs(arguments):
            try:
                values[name] = self.options[name].parse(flag.removeprefix("--"), text)
            except UsageError as error:
                faults.append(error)
        if faults:
            raise UsageError(
                "; ".join(fault.message for fault in faults),
                hint="; ".join(fault.hint for fault in faults),
            )
        return values

    def check_context(self, options: dict[str, Any], limit: int | None) -> None:
        """Raises UsageError for an option that asks for prompts longer than a node takes, `limit` tokens."""
        answer = options.get("max_tokens") or 0
        for name, option in self.options.items():
            if limit is None or not option.in_context or options[name] is None:
                continue
            given = options[name] if isinstance(options[name], list) else [options[name]]
            if max(given) + answer > limit:
                flag = name.replace("_", "-")
                raise UsageError(
                    f"--{flag} {_shown(max(given))} and --max-tokens {answer} are over the "
                    f"{format_whole(limit)} tokens of the node's context length",
                    hint=f"--{flag} may be up to {_shown(limit - answer)} there",
                )

    def notes(self, options: dict[str, Any]) -> list[str]:
        """What a user should know before a run with these options."""
        return [
            option.note_when_off
            for name, option in self.options.items()
            if option.note_when_off and options[name] is None
        ]

    def _pairs(self, arguments: Sequence[str]) -> Iterator[tuple[str, str, str]]:
        """Flag, option name and value text of each pair. Raises UsageError."""
        rest = list(arguments)
        while rest:
            flag, _, text = rest.pop(0).partition("=")
            name = flag.removeprefix("--").replace("-", "_")
            if not flag.startswith("--") or name not in self.options:
                raise UsageError(f"{self.name} has no option {flag!r}", hint=self._nearest(name))
            if not text:
                if not rest:
                    raise UsageError(f"{flag} needs a value", hint=self.options[name].form())
                text = rest.pop(0)
            yield flag, name, text

    def _nearest(self, name: str) -> str:
        near = difflib.get_close_matches(name, self.options, 1, 0.4)
        known = ", ".join("--" + option.replace("_", "-") for option in self.options)
        return (
            f"did you mean --{near[0].replace('_', '-')}?"
            if near
            else f"its options: {known or 'none'}"
        )


def folder() -> Path:
    """Where the scenarios are: beside the sources in a checkout, inside the package when installed.

    Raises ConfigError when neither is there.
    """
    package = Path(kvops.__file__).parent
    for place in (package / "_scenarios", package.parents[1] / "scenarios"):
        if any(place.glob("*.yaml")):
            return place
    raise ConfigError("the scenario files are missing", hint="install kvops again")


def names() -> list[str]:
    return sorted(file.stem for file in folder().glob("*.yaml"))


def find(name: str) -> Scenario:
    """Raises UsageError for an unknown name, ConfigError for a broken YAML file."""
    if name not in names():
        near = difflib.get_close_matches(name, names(), 1, 0.4)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(names())}"
        raise UsageError(f"no scenario {name!r}", hint=hint)
    return read(folder() / f"{name}.yaml")


def read(file: Path) -> Scenario:
    """Raises ConfigError."""
    try:
        data = yaml.safe_load(file.read_text(encoding="utf-8"))
        return Scenario(**data, name=file.stem, path=file.with_suffix(".py"))
    except (OSError, TypeError, yaml.YAMLError, ValidationError) as error:
        raise ConfigError(
            f"{file} is no scenario description: {' '.join(str(error).split())[:300]}",
            hint="those that come with kvops show the form",
        ) from error

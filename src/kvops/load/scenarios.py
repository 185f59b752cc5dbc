"""The scenarios kvops knows: a locust file each, with a YAML file beside it that says what it is for.

Reading them imports no locust: names, options and defaults come from the YAML alone.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

import kvops
from kvops.errors import ConfigError, UsageError

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

    def parse(self, name: str, text: str) -> Any:
        """Raises UsageError that names the option, the value and its bound."""
        from kvops.units import parse_duration

        try:
            match self.type:
                case "text":
                    return text
                case "duration":
                    return self._bounded(parse_duration(text))
                case "int" | "ints":
                    values: list[Any] = [self._bounded(int(part)) for part in text.split(",")]
                case "float" | "floats":
                    values = [self._bounded(float(part)) for part in text.split(",")]
        except ValueError as error:
            raise UsageError(
                f"--{name} {text}: {error}", hint=f"{self.help}; {self.form()}"
            ) from error
        if self.type in ("int", "float") and len(values) != 1:
            raise UsageError(f"--{name} {text}: takes one number", hint=self.help)
        return values if self.type.endswith("s") else values[0]

    def form(self) -> str:
        """What may be given, in words."""
        forms = {"int": "a whole number", "float": "a number", "text": "text", "ints": "whole numbers, 1,2,3",
                 "floats": "numbers, 1,2.5,3", "duration": "a time such as 20s or 5m"}  # fmt: skip
        low = "" if self.minimum is None else f" from {self.minimum:g}"
        high = "" if self.maximum is None else f" to {self.maximum:g}"
        return forms[self.type] + low + high

    def _bounded(self, value: float) -> float:
        low, high = self.minimum, self.maximum
        if not (low is None or value >= low) or not (high is None or value <= high):
            raise ValueError(f"{value:g} is out of bounds")
        return value


class Scenario(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")
    purpose: str
    note: str = ""
    """What a user should know before it runs."""
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
        """All options with `--name value` or `--name=value` pairs taken in. Raises UsageError."""
        values, rest = self.defaults(), list(arguments)
        while rest:
            flag, _, text = rest.pop(0).partition("=")
            name = flag.removeprefix("--").replace("-", "_")
            if not flag.startswith("--") or name not in self.options:
                raise UsageError(f"{self.name} has no option {flag!r}", hint=self._nearest(name))
            if not text:
                if not rest:
                    raise UsageError(f"{flag} needs a value", hint=self.options[name].form())
                text = rest.pop(0)
            values[name] = self.options[name].parse(flag.removeprefix("--"), text)
        return values

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
        raise ConfigError(f"{file} is no scenario description: {error}") from error

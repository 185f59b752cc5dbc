"""The scenarios kvops knows: a locust file each, with a YAML file beside it that says what it is for.

Reading them imports no locust: names, options and defaults come from the YAML alone.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_serializer,
    field_validator,
    model_validator,
)

import kvops
from kvops.errors import ConfigError, UsageError
from kvops.load.options import Option, shown
from kvops.load.pacing import Pacing
from kvops.load.slo import Slo
from kvops.load.workload import Lengths
from kvops.units import format_whole

ReportName = Literal[
    "recall", "injection", "ramp", "plain", "knee", "slo", "batch", "lengths", "fairness", "prefix",
    "turns", "soak", "recovery", "disconnect",
]  # fmt: skip


class Scenario(BaseModel):
    """Its options are those of the YAML and one for each objective of its `slo` section."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")
    purpose: str
    report: ReportName = "plain"
    users: Annotated[int, Field(ge=1, le=10_000)] = 1
    max_users: Annotated[int, Field(ge=1, le=10_000)] = 10_000
    max_processes: Annotated[int, Field(ge=1, le=1000)] = 1000
    """Of the load generator, on all machines."""
    duration: float | None = None
    """Bound of the whole run by default, seconds."""
    pacing: Pacing | None = None
    """How requests arrive by default, where the run may say it; None: the scenario itself decides when to send."""
    replays: bool = True
    """Whether its requests may be those of a trace; False: it has a list of its own."""
    replayed: dict[str, str] = {}
    """Values of options, as typed, that take the place of the defaults where a trace is replayed."""
    slo: Slo | None = None
    """Objectives by default; each is an option, `--slo-ttft 2s`."""
    options: dict[str, Option] = {}
    path: Path
    """The locust file."""

    @field_validator("pacing", mode="before")
    @classmethod
    def _pacing(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        unknown = given.keys() - Pacing.__struct_fields__
        if unknown:
            raise ValueError(f"no setting {', '.join(sorted(map(str, unknown)))} of pacing")
        try:
            return msgspec.convert(given, Pacing)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from error

    @field_serializer("pacing")
    def _plain_pacing(self, pacing: Pacing | None) -> Any:
        return msgspec.to_builtins(pacing)

    @model_validator(mode="after")
    def _replays_soundly(self) -> Scenario:
        for name, text in self.replayed.items():
            if name not in self.options:
                raise ValueError(f"replayed: there is no option {name}")
            self.options[name].parse(name, text)
        return self

    @model_validator(mode="after")
    def _with_slo(self) -> Scenario:
        if self.slo is not None:
            own = self.slo.options()
            if twice := own.keys() & self.options.keys():
                raise ValueError(f"{', '.join(sorted(twice))} is both an option and an objective")
            self.options.update(own)
        return self

    @property
    def arrivals(self) -> str:
        """How requests come by default, in a few words, and what else a run may say."""
        users = f"{self.users} user{'' if self.users == 1 else 's'}"
        if self.pacing is None:
            return users
        if not self.pacing.open:
            return f"{users}, or --rate"
        return f"{self.pacing.kind} {self.pacing.speed}".rstrip() + ", or --arrivals closed"

    def defaults(self, pacing: Pacing | None = None) -> dict[str, Any]:
        """Under the pacing of a run; None: its own."""
        values = {name: option.default for name, option in self.options.items()}
        if pacing is not None and pacing.trace:
            values |= {
                name: self.options[name].parse(name, text) for name, text in self.replayed.items()
            }
        return values

    def parse(
        self, arguments: Sequence[str], pacing: Pacing | None = None, others: Collection[str] = ()
    ) -> dict[str, Any]:
        """All options with `--name value` or `--name=value` pairs taken in. Raises UsageError of all faults.

        `others`: flags that whoever took the arguments knows beside the scenario's, for hints.
        """
        values, faults = self.defaults(pacing), []
        for flag, name, text in self._pairs(arguments, others):
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
        answer = longest(options.get("max_tokens") or 0)
        for name, option in self.options.items():
            if limit is None or not option.in_context or options[name] is None:
                continue
            if (most := longest(options[name])) + answer > limit:
                flag = name.replace("_", "-")
                raise UsageError(
                    f"--{flag} {shown(most)} and --max-tokens {answer} are over the "
                    f"{format_whole(limit)} tokens of the node's context length",
                    hint=f"--{flag} may be up to {shown(limit - answer)} there",
                )

    def notes(self, options: dict[str, Any]) -> list[str]:
        """What a user should know before a run with these options."""
        return [
            option.note_when_off
            for name, option in self.options.items()
            if option.note_when_off and options[name] is None
        ]

    def _pairs(
        self, arguments: Sequence[str], others: Collection[str]
    ) -> Iterator[tuple[str, str, str]]:
        """Flag, option name and value text of each pair. Raises UsageError."""
        rest = list(arguments)
        while rest:
            flag, _, text = rest.pop(0).partition("=")
            name = flag.removeprefix("--").replace("-", "_")
            if not flag.startswith("--") or name not in self.options:
                raise UsageError(
                    f"{self.name} has no option {flag!r}", hint=self._nearest(flag, others)
                )
            if not text:
                if not rest:
                    raise UsageError(f"{flag} needs a value", hint=self.options[name].form())
                text = rest.pop(0)
            yield flag, name, text

    def _nearest(self, flag: str, others: Collection[str]) -> str:
        own = ["--" + option.replace("_", "-") for option in self.options]
        names = [one.removeprefix("--") for one in (*own, *others)]
        near = difflib.get_close_matches(flag.removeprefix("--").replace("_", "-"), names, 1, 0.6)
        return f"did you mean --{near[0]}?" if near else f"its options: {', '.join(own) or 'none'}"


def longest(value: Any) -> int:
    """Of an option that holds a length, several, or a distribution of them."""
    if isinstance(value, list):
        return max(map(longest, value))
    return Lengths.parse(value).high if isinstance(value, str) else int(value)


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

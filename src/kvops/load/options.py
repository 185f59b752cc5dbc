"""One option of a scenario: what may be given for it, and the value that stands for what was given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator, model_validator

from kvops.errors import UsageError
from kvops.load.fairness import MAX_KEYS_FILE, read_keys
from kvops.load.workload import FORMS, Lengths
from kvops.paths import open_regular
from kvops.units import parse_duration

Kind = Literal[
    "int", "float", "text", "ints", "floats", "duration", "lengths", "choice", "file", "keys"
]


class Option(BaseModel):
    """One option of a scenario. `minimum` and `maximum` bound each number of a list, and both ends of lengths."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Kind
    default: Any = None
    """None: the option is off."""
    help: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    """Of a `choice`."""
    in_context: bool = False
    """The prompt's length: with `max_tokens` it must fit into the node's context length."""
    must_hold: Literal["needle", "opening"] | None = None
    """Of `ints` that are prompt lengths: what each must have room for, by the node's tokenizer."""
    note_when_off: str = ""
    """What a user should know before a run without this option."""

    @field_validator("default")
    @classmethod
    def _as_typed(cls, default: Any, info: ValidationInfo) -> Any:
        """YAML reads a fixed length as a number."""
        return (
            str(default) if info.data.get("type") == "lengths" and default is not None else default
        )

    @model_validator(mode="after")
    def _sound(self) -> Option:
        if (self.type == "choice") != bool(self.choices):
            raise ValueError("a choice, and nothing else, has choices")
        if self.must_hold is not None and self.type != "ints":
            raise ValueError("only ints are lengths that must hold something")
        if self.default is not None:
            self._value(typed(self.default))
        return self

    def parse(self, name: str, text: str) -> Any:
        """A value that JSON can hold. Raises UsageError that names the option, the value and its bound."""
        try:
            return self._value(text)
        except ValueError as error:
            raise UsageError(
                f"--{name} {text}: {error}", hint=f"--{name} takes {self.form()}: {self.help}"
            ) from error

    def holds(self, value: Any) -> bool:
        """Whether `value` is one that was parsed, as far as that can be told afterwards: files may be gone."""
        if value is None:
            return self.default is None
        match self.type:
            case "text" | "file" | "keys":
                return isinstance(value, str)
            case "lengths" | "choice":
                return isinstance(value, str) and self._takes(value)
            case "ints" | "floats":
                return isinstance(value, list) and bool(value) and all(map(self._counts, value))
            case "int" | "float" | "duration":
                return self._counts(value)

    def _takes(self, text: str) -> bool:
        try:
            return bool(self._value(text))
        except ValueError:
            return False

    def _counts(self, value: Any) -> bool:
        kind = int if self.type in ("int", "ints") else int | float
        return isinstance(value, kind) and not isinstance(value, bool) and self._in_bounds(value)

    def form(self) -> str:
        """What may be given, in words."""
        forms = {"int": "a whole number", "float": "a number", "text": "text", "ints": "whole numbers, 1,2,3",
                 "floats": "numbers, 1,2.5,3", "duration": "a time such as 20s or 5m",
                 "lengths": f"a length or a distribution, {FORMS},",
                 "choice": " or ".join(self.choices), "file": "the path of a file",
                 "keys": "the path of a file of lines `name key`"}  # fmt: skip
        low = "" if self.minimum is None else f" from {shown(self.minimum)}"
        high = "" if self.maximum is None else f" to {shown(self.maximum)}"
        return (forms[self.type] + low + high).rstrip(",")

    def _value(self, text: str) -> Any:
        """Raises ValueError."""
        match self.type:
            case "text":
                return text
            case "duration":
                return self._bounded(parse_duration(text))
            case "lengths":
                return self._lengths(text)
            case "choice":
                return self._choice(text)
            case "file":
                return _readable(text)
            case "keys":
                return _key_file(text)
            case "int" | "float":
                (value,) = self._numbers(text, most=1)
                return value
            case "ints" | "floats":
                return self._numbers(text)

    def _numbers(self, text: str, most: int = 10_000) -> list[float]:
        parts = text.split(",")
        if len(parts) > most:
            raise ValueError("takes one number" if most == 1 else f"takes at most {most} numbers")
        kind = int if self.type in ("int", "ints") else float
        return [self._number(part, kind) for part in parts]

    def _number(self, text: str, kind: Callable[[str], float]) -> float:
        try:
            value = kind(text)
        except ValueError:
            what = "a whole number" if kind is int else "a number"
            raise ValueError(f"{text.strip()[:40]!r} is not {what}") from None
        return self._bounded(value)

    def _bounded(self, value: float) -> float:
        if not self._in_bounds(value):
            raise ValueError(f"{shown(value)} is out of bounds")
        return value

    def _in_bounds(self, value: float) -> bool:
        low, high = self.minimum, self.maximum
        return (low is None or value >= low) and (high is None or value <= high)

    def _lengths(self, text: str) -> str:
        lengths = Lengths.parse(text)
        self._bounded(lengths.low)
        self._bounded(lengths.high)
        return lengths.text

    def _choice(self, text: str) -> str:
        if text not in self.choices:
            raise ValueError(f"{text[:40]!r} is none of {', '.join(self.choices)}")
        return text


def _readable(text: str) -> str:
    """The whole path: locust runs in another folder."""
    path = Path(text).expanduser().absolute()
    try:
        with open_regular(path):
            return str(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ValueError(reason) from error


def _key_file(text: str) -> str:
    """The whole path; the keys stay in the file, for options are kept with the run."""
    path = _readable(text)
    try:
        with Path(path).open(encoding="utf-8") as file:
            found = read_keys(file.read(MAX_KEYS_FILE))
    except UnicodeDecodeError:
        raise ValueError("not text") from None
    if len(found) < 2:
        raise ValueError(f"holds {len(found)} of the two tenants that it takes at least")
    return path


def typed(value: Any) -> str:
    """A value as a user would type it."""
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def shown(value: float) -> str:
    """As it is typed: every digit, no separators."""
    return str(int(value)) if abs(value) < 1e15 and value == value // 1 else f"{value:g}"

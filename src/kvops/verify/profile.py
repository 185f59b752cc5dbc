"""Which checks a run makes, how severe each is and with which thresholds: YAML, validated before anything runs."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from kvops.errors import ConfigError, UsageError
from kvops.units import format_bytes, parse_duration
from kvops.verify.check import Check, Parameters
from kvops.verify.verdict import Severity

MAX_FILE = 256 * 1024
_FORM = (
    "schema_version: 1, name, description, and checks, each with an id and, if need be, "
    "severity, timeout, stop_on_fail and parameters"
)


class Entry(BaseModel):
    """One check of a profile."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    severity: Severity = "required"
    timeout: Annotated[float, BeforeValidator(parse_duration), Field(gt=0, le=3600)] = 30.0
    stop_on_fail: bool = False
    """When this check fails, the rest is not run: it could only fail for the same reason."""
    parameters: dict[str, Any] = {}


class Profile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1]
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
    description: str = ""
    checks: Annotated[list[Entry], Field(min_length=1, max_length=200)]


@dataclass(frozen=True)
class PlannedCheck:
    check: Check
    entry: Entry
    parameters: Parameters


def builtin_profiles() -> list[str]:
    return sorted(p.name.removesuffix(".yaml") for p in _folder() if p.name.endswith(".yaml"))


def load_profile(name_or_path: str) -> Profile:
    """A built-in profile by name, or a YAML file. Raises UsageError, ConfigError."""
    if name_or_path in builtin_profiles():
        text = (resources.files("kvops.verify.profiles") / f"{name_or_path}.yaml").read_text()
    elif Path(name_or_path).suffix in (".yaml", ".yml"):
        text = _read(Path(name_or_path))
    else:
        raise UsageError(
            f"no profile {name_or_path!r}", hint=_nearest(name_or_path, builtin_profiles())
        )
    try:
        return Profile.model_validate(yaml.safe_load(text))
    except (yaml.YAMLError, ValidationError, RecursionError) as error:
        raise ConfigError(
            f"profile {name_or_path!r}: {_faults(error)}", hint=f"what a profile may hold: {_FORM}"
        ) from None


def plan(
    profile: Profile, known: Sequence[Check], only: Sequence[str] = (), skip: Sequence[str] = ()
) -> list[PlannedCheck]:
    """The profile's checks in its order, less those left out. Raises UsageError, ConfigError."""
    by_id = {check.id: check for check in known}
    for entry in profile.checks:
        if entry.id not in by_id:
            hint = _nearest(entry.id, by_id)
            raise ConfigError(f"profile {profile.name!r}: no check {entry.id!r}", hint=hint)
    ids = [entry.id for entry in profile.checks]
    for wanted in [*only, *skip]:
        if wanted not in ids:
            hint = _nearest(wanted, ids)
            raise UsageError(f"profile {profile.name!r} has no check {wanted!r}", hint=hint)
    chosen = [e for e in profile.checks if (not only or e.id in only) and e.id not in skip]
    if not chosen:
        raise UsageError("no check is left to run", hint="name fewer with --skip")
    return [PlannedCheck(by_id[e.id], e, _parameters(profile, by_id[e.id], e)) for e in chosen]


def left_out(
    profile: Profile, only: Sequence[str] = (), skip: Sequence[str] = ()
) -> dict[str, Literal["--only", "--skip"]]:
    """The profile's checks that `plan` leaves out, each with the option that did."""
    return {
        entry.id: "--skip" if entry.id in skip else "--only"
        for entry in profile.checks
        if entry.id in skip or (only and entry.id not in only)
    }


def _parameters(profile: Profile, check: Check, entry: Entry) -> Parameters:
    try:
        return check.parameters.model_validate(entry.parameters)
    except ValidationError as error:
        known = ", ".join(check.parameters.model_fields) or "none"
        raise ConfigError(
            f"profile {profile.name!r}, check {check.id}: {_faults(error)}",
            hint=f"its parameters are: {known}",
        ) from None


def _faults(error: Exception) -> str:
    """All that is wrong, each with where it stands and what stands there."""
    if isinstance(error, ValidationError):
        return "; ".join(_fault(fault) for fault in error.errors(include_url=False))
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return " ".join(str(error).split())[:300]


def _fault(fault: Mapping[str, Any]) -> str:
    where = ".".join(str(part) for part in fault["loc"]) or "document"
    said = fault["msg"].removeprefix("Value error, ")
    what = said[:1].lower() + said[1:]
    if fault["type"] == "extra_forbidden":
        return f"{where}: not known"
    if fault["type"] == "missing" or not isinstance(fault["input"], str | int | float):
        return f"{where}: {what}"
    return f"{where}: {fault['input']!r}: {what}"


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE:
            raise ConfigError(
                f"profile {path} is larger than {format_bytes(MAX_FILE)}",
                hint="is it the right file? kvops verify --profile FILE.yaml",
            )
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        what = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(
            f"cannot read profile {path}: {what}",
            hint=f"name a readable YAML file, or a built-in: {', '.join(builtin_profiles())}",
        ) from None


def _folder() -> Iterable[Any]:
    return resources.files("kvops.verify.profiles").iterdir()


def _nearest(wanted: str, known: Iterable[str]) -> str:
    names = sorted(known)
    near = difflib.get_close_matches(wanted, names, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"there are: {', '.join(names)}"

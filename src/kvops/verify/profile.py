"""Which checks a run makes, how severe each is and with which thresholds: YAML, validated before anything runs."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
)

from kvops.errors import ConfigError, UsageError
from kvops.units import format_bytes, parse_duration
from kvops.verify import document
from kvops.verify.verdict import Severity

MAX_FILE = 256 * 1024
MAX_EXTENDS = 8
_FORM = (
    "schema_version: 1, name, description, extends, without, baseline, and checks, each with an id and, "
    "if need be, severity, timeout, stop_on_fail and parameters"
)
_Strict = ConfigDict(extra="forbid", frozen=True)
_Tolerance = Annotated[float, Field(ge=0, le=100)]


class Entry(BaseModel):
    """One check of a profile."""

    model_config = _Strict

    id: str
    severity: Severity = "required"
    timeout: Annotated[float, BeforeValidator(parse_duration), Field(gt=0, le=3600 * 24)] = 30.0
    stop_on_fail: bool = False
    """When this check fails, the rest is not run: it could only fail for the same reason."""
    parameters: dict[str, Any] = {}

    def over(self, below: Entry) -> Entry:
        """What this one says, and of the rest and of its parameters what `below` says."""
        said = {name: getattr(self, name) for name in self.model_fields_set}
        said["parameters"] = below.parameters | self.parameters
        return below.model_copy(update=said)


class SeriesRule(BaseModel):
    """How one series, or all whose names match a pattern, is compared."""

    model_config = _Strict

    severity: Severity | None = None
    tolerance: _Tolerance | None = None


class BaselineRules(BaseModel):
    """How `--baseline` compares."""

    model_config = _Strict

    severity: Severity = "required"
    tolerance: _Tolerance = 0.25
    """Relative change for the worse that is put up with, however sure it is."""
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.98
    """Of all series together that none is called worse by chance."""
    min_samples: Annotated[int, Field(ge=3, le=2000)] = 5
    """Of either run; with fewer a series is inconclusive."""
    series: dict[str, SeriesRule] = {}
    """By name or pattern (`ttft.*`); the first that matches holds."""


class Profile(BaseModel):
    model_config = _Strict

    schema_version: Literal[1]
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
    description: str = ""
    extends: str | None = None
    """A built-in, or a file beside this one: its checks come first, and an entry here changes what it names."""
    without: list[str] = []
    """Checks of the extended profile that are not made."""
    baseline: BaselineRules = BaselineRules()
    checks: Annotated[list[Entry], Field(max_length=200)] = []
    _places: dict[tuple[str, ...], str] = PrivateAttr(default_factory=dict)

    def place(self, *what: str) -> str:
        """`mine.yaml line 7`, of a check or of its parameter; empty where it is not written anywhere."""
        return self._places.get(what, self._places.get(what[:1], ""))


def builtin_profiles() -> list[str]:
    return sorted(p.name.removesuffix(".yaml") for p in _folder() if p.name.endswith(".yaml"))


def load_profile(name_or_path: str) -> Profile:
    """A built-in profile by name, or a YAML file, with all that it extends. Raises UsageError, ConfigError."""
    return _load(name_or_path, None, ())


def _load(wanted: str, beside: Path | None, above: tuple[str, ...]) -> Profile:
    where, text = _text(wanted, beside)
    if where in above or len(above) >= MAX_EXTENDS:
        chain = " → ".join((*above, where))
        raise ConfigError(
            f"profile {above[0]!r} extends itself, or more than {MAX_EXTENDS} others: {chain}",
            hint="extend a profile that stands on its own",
        )
    profile = _parsed(text, wanted)
    if profile.extends is None:
        return _whole(profile, wanted)
    folder = Path(where).parent if is_file(wanted) else None
    return _whole(_merged(_load(profile.extends, folder, (*above, where)), profile, wanted), wanted)


def _parsed(text: str, wanted: str) -> Profile:
    try:
        profile = Profile.model_validate(document.load(text))
    except (*document.FAULTS, ValidationError) as error:
        raise ConfigError(
            f"profile {wanted!r}: {document.faults(error, text)}",
            hint=f"what a profile may hold: {_FORM}",
        ) from None
    profile._places.update(document.places(text, Path(wanted).name))
    return profile


def _merged(below: Profile, profile: Profile, wanted: str) -> Profile:
    """`below` with what `profile` changes in place, then what it adds, in its order."""
    entries = {entry.id: entry for entry in below.checks}
    unknown = [name for name in profile.without if name not in entries]
    if unknown:
        raise ConfigError(
            f"profile {wanted!r}: without: {below.name} has no check {', '.join(map(repr, unknown))}",
            hint=nearest(unknown[0], entries),
        )
    for entry in profile.checks:
        entries[entry.id] = entry.over(entries[entry.id]) if entry.id in entries else entry
    kept = [entry for name, entry in entries.items() if name not in profile.without]
    baseline = profile.baseline if "baseline" in profile.model_fields_set else below.baseline
    both = profile.model_copy(update={"checks": kept, "baseline": baseline})
    both._places = below._places | profile._places
    return both


def _whole(profile: Profile, wanted: str) -> Profile:
    ids = [entry.id for entry in profile.checks]
    twice = sorted({name for name in ids if ids.count(name) > 1})
    if twice:
        raise ConfigError(
            f"profile {wanted!r}: {', '.join(twice)} stands in it more than once",
            hint="one entry a check, with all its parameters",
        )
    if not ids:
        raise ConfigError(f"profile {wanted!r}: checks: there are none", hint=f"it holds: {_FORM}")
    return profile


def _text(wanted: str, beside: Path | None) -> tuple[str, str]:
    """Where it is from, the same for the same profile however it is named; and the YAML."""
    if wanted in builtin_profiles():
        return wanted, (resources.files("kvops.verify.profiles") / f"{wanted}.yaml").read_text()
    if not is_file(wanted):
        raise UsageError(f"no profile {wanted!r}", hint=nearest(wanted, builtin_profiles()))
    path = Path(wanted) if beside is None else beside / wanted
    return str(path.resolve()), _read(path)


def is_file(wanted: str) -> bool:
    return Path(wanted).suffix in (".yaml", ".yml")


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


def nearest(wanted: str, known: Iterable[str]) -> str:
    """A hint: the name that may have been meant, else all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(wanted, names, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"there are: {', '.join(names)}"

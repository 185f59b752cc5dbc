"""From a profile to the checks that are run: ids, areas (V7) and prefixes (recall.) that `--only` and `--skip` name."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import msgspec
from pydantic import ValidationError

from kvops.errors import ConfigError, UsageError
from kvops.verify import document
from kvops.verify.check import Check, Parameters
from kvops.verify.profile import Entry, Profile, nearest

LeftOut = Mapping[str, Literal["--only", "--skip"]]


@dataclass(frozen=True)
class PlannedCheck:
    check: Check
    entry: Entry
    parameters: Parameters


@dataclass(frozen=True)
class Plan:
    """What a run is to do."""

    profile: Profile
    source: str
    """The name or file that was asked for."""
    everything: list[PlannedCheck]
    checks: list[PlannedCheck]
    left_out: LeftOut

    def without(self, left_out: LeftOut) -> Plan:
        """The same profile less what another plan of it left out."""
        chosen = [planned for planned in self.everything if planned.check.id not in left_out]
        return replace(self, checks=chosen, left_out=left_out)

    @property
    def fingerprint(self) -> str:
        """The same for the same checks with the same thresholds, whatever was left out; 12 hex digits."""
        said = [
            (p.check.id, p.entry.severity, p.entry.timeout, p.parameters.model_dump(mode="json"))
            for p in self.everything
        ]
        encoded = msgspec.json.encode((self.profile.name, said), order="sorted")
        return hashlib.sha256(encoded).hexdigest()[:12]


def select(
    profile: Profile,
    source: str,
    known: Sequence[Check],
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
) -> Plan:
    """Raises UsageError, ConfigError before anything is sent to a node."""
    everything = _resolved(profile, known)
    named = {
        option: {i for wanted in given for i in _matching(profile.name, everything, wanted)}
        for option, given in (("--only", only), ("--skip", skip))
    }
    out: dict[str, Literal["--only", "--skip"]] = {}
    for check in everything:
        name = check.check.id
        if name in named["--skip"]:
            out[name] = "--skip"
        elif only and name not in named["--only"]:
            out[name] = "--only"
    chosen = [check for check in everything if check.check.id not in out]
    if not chosen:
        raise UsageError("no check is left to run", hint="name fewer with --skip")
    return Plan(profile, source, everything, chosen, out)


def plan(
    profile: Profile, known: Sequence[Check], only: Sequence[str] = (), skip: Sequence[str] = ()
) -> list[PlannedCheck]:
    """The profile's checks in its order, less those left out. Raises UsageError, ConfigError."""
    return select(profile, profile.name, known, only, skip).checks


def _matching(profile: str, everything: Sequence[PlannedCheck], wanted: str) -> list[str]:
    """Ids that `wanted` names: an id, an area such as V7, or a prefix that ends in a dot."""
    found = [
        planned.check.id
        for planned in everything
        if wanted in (planned.check.id, planned.check.area)
        or (wanted.endswith(".") and planned.check.id.startswith(wanted))
    ]
    if not found:
        hint = nearest(wanted, [planned.check.id for planned in everything])
        raise UsageError(f"profile {profile!r} has no check {wanted!r}", hint=hint)
    return found


def _resolved(profile: Profile, known: Sequence[Check]) -> list[PlannedCheck]:
    """All checks of the profile in its order, those that close a run last; every fault of every entry at once."""
    by_id = {check.id: check for check in known}
    found: list[PlannedCheck] = []
    faults: list[str] = []
    hints: list[str] = []
    for entry in profile.checks:
        check = by_id.get(entry.id)
        if check is None:
            faults.append(f"{_at(profile, entry.id)}no check {entry.id!r}")
            hints.append(nearest(entry.id, by_id))
            continue
        try:
            found.append(
                PlannedCheck(check, entry, check.parameters.model_validate(entry.parameters))
            )
        except ValidationError as error:
            name = str(error.errors()[0]["loc"][0]) if error.errors()[0]["loc"] else ""
            place = _at(profile, entry.id, name)
            faults.append(f"{place}{entry.id}: {document.faults(error)}")
            hints.append(f"parameters of {entry.id}: {', '.join(check.parameters.model_fields)}")
    if faults:
        raise ConfigError(f"profile {profile.name!r}: {'; '.join(faults)}", hint="; ".join(hints))
    return sorted(found, key=lambda planned: planned.check.closing)


def _at(profile: Profile, *what: str) -> str:
    place = profile.place(*what)
    return f"{place}: " if place else ""

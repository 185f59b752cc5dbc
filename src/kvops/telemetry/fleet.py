"""The fleet file: the nodes of other machines by name, their credentials' files, and which may be put under load.

`resolve` is how every command finds a node: here, in that file, or at a URL.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from kvops import paths, registry
from kvops.errors import ConfigError, KvopsError, NodeNotFound, UsageError
from kvops.telemetry import targets
from kvops.telemetry.targets import Target

_FORM = (
    "a list of nodes, each with name and url, and if wanted control_url, token_file, api_key_file "
    "and allow_load: true|false"
)
MAX_BYTES = 2**20


class Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
    url: str
    control_url: str | None = None
    token_file: Path | None = None
    api_key_file: Path | None = None
    """Both: from the folder of the fleet file, where they are not absolute."""
    allow_load: bool | None = None
    """Unset: only a node on this machine."""

    @field_validator("url", "control_url")
    @classmethod
    def _url(cls, given: str | None) -> str | None:
        try:
            return None if given is None else registry.check_url(given)
        except KvopsError as error:
            raise ValueError(str(error)) from error

    @property
    def may_be_loaded(self) -> bool:
        return (
            is_loopback(urlsplit(self.url).hostname or "")
            if self.allow_load is None
            else self.allow_load
        )


class Fleet(BaseModel):
    model_config = ConfigDict(frozen=True)

    path: Path
    entries: tuple[Entry, ...] = ()

    def named(self, name: str) -> Entry | None:
        return next((entry for entry in self.entries if entry.name == name), None)

    def at(self, url: str) -> Entry | None:
        """The entry of the place that `url` names, however it is written."""
        return next((entry for entry in self.entries if _place(entry.url) == _place(url)), None)

    def file(self, named: Path | None) -> Path | None:
        """Where a file lies that an entry names."""
        return None if named is None else self.path.parent / named.expanduser()


def resolve(
    text: str | None,
    fleet: Fleet,
    *,
    api_key_file: Path | None = None,
    token_file: Path | None = None,
    control_url: str | None = None,
) -> Target:
    """A node of this machine, a URL, a name of the fleet, or None for the only local node.

    What is given here goes before what the fleet says of a node. Raises NodeNotFound, UsageError.
    """
    entry = None if text is None else fleet.named(text)
    if entry is None:
        return _outside(text, fleet, api_key_file, token_file, control_url)
    record = registry.read(entry.name)
    if record is not None and record.alive() and fleet.at(record.url) != entry:
        raise UsageError(
            f"{entry.name!r} is a node of this machine and another one in {fleet.path}",
            hint=f"give a URL: {record.url} or {entry.url}",
        )
    return targets.resolve(
        entry.url,
        api_key_file=api_key_file or fleet.file(entry.api_key_file),
        token_file=token_file or fleet.file(entry.token_file),
        control_url=control_url or entry.control_url,
    )


def find(
    text: str | None,
    file: Path | None,
    *,
    api_key_file: Path | None = None,
    token_file: Path | None = None,
    control_url: str | None = None,
) -> Target:
    """As `resolve`, in the fleet of `file`. The default file is not needed, and not read, for the only local node."""
    fleet = Fleet(path=default_file()) if text is None and file is None else read(file)
    return resolve(
        text, fleet, api_key_file=api_key_file, token_file=token_file, control_url=control_url
    )


def _outside(
    text: str | None,
    fleet: Fleet,
    api_key_file: Path | None,
    token_file: Path | None,
    control_url: str | None,
) -> Target:
    try:
        return targets.resolve(
            text, api_key_file=api_key_file, token_file=token_file, control_url=control_url
        )
    except NodeNotFound as error:
        if text is None:
            raise
        raise NodeNotFound(
            f"{error.message}, and {fleet.path} names none so",
            hint="kvops node status lists those of this machine; a URL works too",
        ) from None


def default_file() -> Path:
    return paths.config_dir() / "fleet.yaml"


def read(file: Path | None = None) -> Fleet:
    """The fleet of `file`; of the default file, which may be missing, for None. Raises ConfigError."""
    path = file or default_file()
    if file is None and not path.exists():
        return Fleet(path=path)
    try:
        with paths.open_regular(path) as opened:
            data = yaml.safe_load(opened.read(MAX_BYTES))
        entries = TypeAdapter(tuple[Entry, ...]).validate_python(data or ())
    except ValidationError as error:
        raise ConfigError(f"{path}: {_faults(error)}", hint=f"it is {_FORM}") from error
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
        raise ConfigError(f"cannot read {path}: {reason}", hint=f"it is {_FORM}") from error
    if twice := _twice(entry.name for entry in entries):
        raise ConfigError(
            f"{path}: {twice} is named twice", hint="give each node a name of its own"
        )
    return Fleet(path=path, entries=entries)


def _faults(error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}"
        for fault in error.errors()[:5]
    )


def _twice(names: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _place(url: str) -> tuple[str, int | None]:
    parts = urlsplit(url)
    host = "127.0.0.1" if parts.hostname == "localhost" else parts.hostname or ""
    return host, parts.port or {"http": 80, "https": 443}.get(parts.scheme)

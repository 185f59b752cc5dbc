"""The fleet file: the nodes of other machines by name, and which of them may be put under load."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from kvops import paths, registry
from kvops.errors import ConfigError, KvopsError

_FORM = (
    "a list of nodes, each with name and url, and if wanted control_url and allow_load: true|false"
)
MAX_BYTES = 2**20


class Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
    url: str
    control_url: str | None = None
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

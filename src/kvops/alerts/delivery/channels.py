"""The receivers of a node, each with its secret URL, read from a file or the environment when the node starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol
from urllib.parse import urlsplit

from kvops.config.environment import credential, read_secret_file
from kvops.config.keys import PREFIX
from kvops.errors import ConfigError

VARIABLE = f"{PREFIX}ALERT_URL_"
_MAX_URL = 4096


class ChannelSettings(Protocol):
    """What the configuration says of a channel."""

    @property
    def kind(self) -> Literal["webhook", "apprise"]: ...

    @property
    def url_file(self) -> Path | None: ...

    @property
    def timeout(self) -> float: ...


@dataclass(frozen=True)
class Channel:
    name: str
    kind: Literal["webhook", "apprise"]
    url: str = field(repr=False)
    """A secret: in no log, no error, no snapshot."""
    timeout: float
    """Seconds, of one attempt."""


class DeliveryFailed(Exception):
    """Its text is the reason, which an operator may read."""


def variable(name: str) -> str:
    """The environment variable that may hold the URL of channel `name`."""
    return VARIABLE + "".join(c if c.isalnum() else "_" for c in name.upper())


def read_channels(settings: Mapping[str, ChannelSettings]) -> tuple[Channel, ...]:
    """Raises ConfigError that names the channel and never the URL."""
    return tuple(
        Channel(name, each.kind, _read_url(name, each), each.timeout)
        for name, each in settings.items()
    )


def _read_url(name: str, settings: ChannelSettings) -> str:
    where, secret = f"alerts.channels.{name}", variable(name)
    pointed, value = os.environ.get(f"{secret}_FILE"), os.environ.get(secret)
    granted = credential(secret.removeprefix(PREFIX).lower(), os.environ)
    given = [each for each in (settings.url_file, granted, pointed, value) if each]
    if len(given) != 1:
        raise ConfigError(
            f"{where}: its URL is given {'in more than one place' if given else 'nowhere'}",
            hint=f"give one of url_file, {secret} and {secret}_FILE",
        )
    return _checked(where, settings.kind, (value or _from_file(where, Path(given[0]))).strip())


def _from_file(where: str, file: Path) -> str:
    try:
        return read_secret_file(file)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error.message}", hint=error.hint) from None


def _checked(where: str, kind: str, url: str) -> str:
    """Says what is wrong with a URL without showing it."""
    try:
        parts = urlsplit(url)
        web = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        known = web if kind == "webhook" else bool(parts.scheme)
        known = known and url.isprintable() and " " not in url and len(url) <= _MAX_URL
    except ValueError:
        known = False
    if not known:
        wanted = "http(s)://…" if kind == "webhook" else "one that apprise knows, such as slack://…"
        raise ConfigError(
            f"{where}: what is given as its URL is none", hint=f"write {wanted} on one line"
        )
    return url

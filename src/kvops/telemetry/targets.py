"""From what a user types (`--node`) to where a node listens and with which credentials."""

from __future__ import annotations

import os
import re
import ssl
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from kvops import registry
from kvops.errors import NodeNotFound, UsageError

_HOST_PORT = re.compile(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+):\d+(/.*)?")

_PLAIN = re.compile(r"[!-~]+")


class Target(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    url: str
    """Data plane, no trailing slash."""
    control_url: str | None = None
    token: str | None = None
    """Admin token of the control plane."""
    api_key: str | None = None


def resolve(
    text: str | None = None,
    *,
    api_key_file: Path | None = None,
    token_file: Path | None = None,
    control_url: str | None = None,
) -> Target:
    """A node name of this machine, a URL, or None for the only local node.

    A URL at which a node of this machine listens is that node. Credentials: the files given, else
    `KVOPS_API_KEY` / `KVOPS_ADMIN_TOKEN` (or their `_FILE` forms), else, for a local node, its own token file.
    Raises NodeNotFound, UsageError.
    """
    key = api_key(api_key_file)
    token = _secret("KVOPS_ADMIN_TOKEN", token_file)
    if text is not None and _is_address(text):
        url = _checked_url(text)
        record = record_at(url)
        if record is None or control_url not in (None, record.control_url):
            # A local node's token goes to that node's control plane and nowhere else.
            return Target(
                name=urlsplit(url).netloc,
                url=url,
                control_url=None if control_url is None else _checked_url(control_url),
                token=token,
                api_key=key,
            )
    else:
        record = _local_record(text)
        if control_url not in (None, record.control_url):
            raise UsageError(
                f"--control-url belongs to a URL; {record.name!r} is a node of this machine",
                hint="leave --control-url out, or give the node's URL",
            )
    return Target(
        name=record.name,
        url=record.url,
        control_url=record.control_url,
        token=token or _read_secret(registry.token_file(record.name)),
        api_key=key,
    )


def api_key(file: Path | None = None) -> str | None:
    """A key of the data plane: of `file`, else `KVOPS_API_KEY` or its `_FILE` form. Raises UsageError."""
    return _secret("KVOPS_API_KEY", file)


def trust(url: str) -> ssl.SSLContext | bool:
    """Whom a client of `url` believes, as httpx's `verify`: SSL_CERT_FILE or SSL_CERT_DIR, else the system's roots."""
    return ssl.create_default_context() if url.startswith("https:") else False


def check(text: str) -> None:
    """Raises UsageError for what can be neither a node name nor an http(s) URL."""
    if _is_address(text):
        _checked_url(text)
    else:
        registry.node_dir(text)


def _is_address(text: str) -> bool:
    """Whether a URL is meant: a name holds no colon. A bare `host:port` is one without its scheme."""
    return "://" in text or _HOST_PORT.fullmatch(text) is not None


def _checked_url(text: str) -> str:
    if "://" not in text:
        raise UsageError(
            f"{text!r} is no URL: its scheme is missing", hint=f"add http://, as in http://{text}"
        )
    return registry.check_url(text)


def record_at(url: str) -> registry.NodeRecord | None:
    """The node of this machine that listens at `url`."""
    wanted = _place(url)
    return next((record for record in registry.running() if _place(record.url) == wanted), None)


def _place(url: str) -> tuple[str, str, int | None, str]:
    """What two URLs of one place have in common; `localhost` is where a node binds by default."""
    parts = urlsplit(url)
    host = "127.0.0.1" if parts.hostname == "localhost" else parts.hostname or ""
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return (parts.scheme, host, port, parts.path.rstrip("/"))


def _local_record(name: str | None) -> registry.NodeRecord:
    if name is not None:
        registry.node_dir(name)  # a name that can be none is a mistake, not a node that is absent
    record = registry.the_only_one() if name is None else registry.read(name)
    if record is None or not record.alive():
        raise NodeNotFound(
            f"no node {name!r} runs on this machine",
            hint="kvops node status lists them; a URL works too",
        )
    return record


def _secret(variable: str, file: Path | None) -> str | None:
    if file is not None:
        secret = _read_secret(file)
        if secret is None:
            raise UsageError(
                f"cannot read {file}", hint="name a file that holds the secret on one line"
            )
        return secret
    pointed = os.environ.get(f"{variable}_FILE")
    value = os.environ.get(variable)
    if pointed and value:
        raise UsageError(f"both {variable} and {variable}_FILE are set", hint="unset one of them")
    if pointed:
        return _secret(variable, Path(pointed))
    if value and not _PLAIN.fullmatch(value):
        raise UsageError(f"{variable} holds more than one line of plain characters")
    return value or None


def _read_secret(file: Path) -> str | None:
    """None for what cannot be read, and for what can be no secret: a header carries one plain line."""
    try:
        secret = file.read_text().removesuffix("\n")
    except (OSError, ValueError):
        return None
    return secret if _PLAIN.fullmatch(secret) else None

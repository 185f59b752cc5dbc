"""From what a user types (`--node`) to where a node listens and with which credentials."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from kvops import registry
from kvops.errors import NodeNotFound, UsageError


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

    Credentials: the files given, else `KVOPS_API_KEY` / `KVOPS_ADMIN_TOKEN` (or their `_FILE` forms), else,
    for a local node, its own token file. Raises NodeNotFound, UsageError.
    """
    api_key = _secret("KVOPS_API_KEY", api_key_file)
    token = _secret("KVOPS_ADMIN_TOKEN", token_file)
    if text is not None and "://" in text:
        parts = urlsplit(text)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(
                f"{text!r} is not an http(s) URL", hint="for example http://127.0.0.1:8000"
            )
        return Target(
            name=parts.netloc,
            url=text.rstrip("/"),
            control_url=control_url,
            token=token,
            api_key=api_key,
        )
    record = registry.the_only_one() if text is None else registry.read(text)
    if record is None or not record.alive():
        raise NodeNotFound(
            f"no node {text!r} runs on this machine",
            hint="kvops node status lists them; a URL works too",
        )
    if token is None:
        token = _read_secret(registry.token_file(record.name))
    return Target(
        name=record.name,
        url=record.url,
        control_url=record.control_url,
        token=token,
        api_key=api_key,
    )


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
    return value or None


def _read_secret(file: Path) -> str | None:
    try:
        return file.read_text().removesuffix("\n") or None
    except OSError:
        return None

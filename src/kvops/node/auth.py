"""Who may ask: API keys of the data plane, the admin token of the control plane, the cache salt of a tenant.

Secrets are compared as SHA-256 digests, in constant time, over all of them without an early exit.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kvops import paths
from kvops.errors import ConfigError, InvalidApiKey

MAX_KEYS = 10_000
DEFAULT_TENANT = "default"
_SECRET_BYTES = 32
_SECRET = re.compile(r"[!-~]{43,}")
"""As long as the secrets made here, in characters that a header can carry."""


@dataclass(frozen=True)
class ApiKey:
    id: str
    tenant: str
    digest: bytes
    """SHA-256 of the key."""


@dataclass(frozen=True)
class Caller:
    tenant: str
    key_id: str | None


class KeyRing:
    """The API keys of a node. Empty: the node listens on loopback only and everyone is tenant `default`."""

    def __init__(self, keys: list[ApiKey]) -> None:
        self._keys = keys

    def __len__(self) -> int:
        return len(self._keys)

    def identify(self, authorization: str | None) -> Caller:
        """The caller behind an `Authorization` header. Raises InvalidApiKey."""
        if not self._keys:
            return Caller(DEFAULT_TENANT, None)
        presented = bearer(authorization)
        if presented is None:
            raise InvalidApiKey(
                "no API key was sent.", hint="Send the header `Authorization: Bearer <key>`."
            )
        digest = _digest(presented)
        found: ApiKey | None = None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        if found is None:
            raise InvalidApiKey("the API key is not known to this node.")
        return Caller(found.tenant, found.id)


class AdminToken:
    """The token of the control plane: made once, kept in the node's folder with mode 0600."""

    def __init__(self, file: Path) -> None:
        self._digest = _digest(_kept_secret(file))

    def accepts(self, authorization: str | None) -> bool:
        presented = bearer(authorization)
        return presented is not None and hmac.compare_digest(self._digest, _digest(presented))


class TenantSalts:
    """HMAC-SHA256(node secret, tenant): what the prefix cache mixes in, so that no tenant can probe another's."""

    def __init__(self, file: Path) -> None:
        self._secret = _kept_secret(file).encode()

    def of(self, tenant: str) -> bytes:
        return hmac.digest(self._secret, tenant.encode(), "sha256")


def bearer(authorization: str | None) -> str | None:
    """The token of `Authorization: Bearer <token>`; None for anything else."""
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def load_keys(file: Path | None) -> KeyRing:
    """Keys of `server.api_keys_file`, else of KVOPS_API_KEYS or KVOPS_API_KEYS_FILE. Raises ConfigError."""
    plain, pointed = os.environ.get("KVOPS_API_KEYS"), os.environ.get("KVOPS_API_KEYS_FILE")
    sources = [name for name, value in (("server.api_keys_file", file), ("KVOPS_API_KEYS", plain),
                                        ("KVOPS_API_KEYS_FILE", pointed)) if value]  # fmt: skip
    if len(sources) > 1:
        raise ConfigError(f"API keys come from {' and '.join(sources)}", hint="leave one of them")
    if plain:
        return KeyRing(_plain_keys(plain))
    if file is not None or pointed:
        return KeyRing(_read_keys(file or Path(str(pointed))))
    return KeyRing([])


def _plain_keys(text: str) -> list[ApiKey]:
    keys = [part.strip() for part in text.split(",") if part.strip()]
    if not keys:
        raise ConfigError("KVOPS_API_KEYS holds no key", hint="separate keys by commas")
    return [ApiKey(f"env-{at}", DEFAULT_TENANT, _digest(key)) for at, key in enumerate(keys)]


def _read_keys(file: Path) -> list[ApiKey]:
    try:
        mode = stat.S_IMODE(file.stat().st_mode)
        data = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the API keys file {file}: {error.strerror}") from None
    if mode & 0o007:
        raise ConfigError(
            f"{file} is readable by everyone (mode {mode:04o})", hint=f"chmod 600 {file}"
        )
    try:
        rows = yaml.safe_load(data)
    except (yaml.YAMLError, RecursionError, ValueError):
        raise ConfigError(f"{file} is not valid YAML") from None
    if not isinstance(rows, list) or not 0 < len(rows) <= MAX_KEYS:
        raise ConfigError(
            f"{file} is no list of 1 to {MAX_KEYS} keys", hint="rows are {id, tenant, sha256}"
        )
    keys = [_read_row(row, f"{file} row {at + 1}") for at, row in enumerate(rows)]
    if len({key.id for key in keys}) < len(keys):
        raise ConfigError(f"{file} names a key id twice")
    return keys


def _read_row(row: Any, where: str) -> ApiKey:
    if not isinstance(row, dict) or set(row) != {"id", "tenant", "sha256"}:
        raise ConfigError(f"{where} is not {{id, tenant, sha256}}")
    if not all(isinstance(value, str) and 0 < len(value) <= 128 for value in row.values()):
        raise ConfigError(f"{where}: id, tenant and sha256 are texts of 1 to 128 characters")
    try:
        digest = bytes.fromhex(row["sha256"])
    except ValueError:
        digest = b""
    if len(digest) != 32:
        raise ConfigError(f"{where}: sha256 is not 64 hex digits", hint="printf %s KEY | sha256sum")
    if digest == _digest(""):
        raise ConfigError(f"{where}: sha256 is that of an empty key", hint="was $KEY set?")
    return ApiKey(row["id"], row["tenant"], digest)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


def _kept_secret(file: Path) -> str:
    """The secret in `file`, made at the first call. Raises ConfigError for one that is open, cut or weak."""
    try:
        if not file.exists():
            paths.write_atomic(file, secrets.token_urlsafe(_SECRET_BYTES).encode())
        mode = stat.S_IMODE(file.stat().st_mode)
        text = file.read_bytes().decode("latin-1").strip()
    except OSError as error:
        raise ConfigError(f"cannot read the secret {file}: {error.strerror}") from None
    if mode & 0o077:
        raise ConfigError(f"{file} is open to others (mode {mode:04o})", hint=f"chmod 600 {file}")
    if not _SECRET.fullmatch(text):
        raise ConfigError(
            f"{file} holds {len(text)} characters, not the 43 or more plain ones of a secret",
            hint=f"rm {file}: the next start makes a new one",
        )
    return text

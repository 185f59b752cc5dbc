"""Who may ask: API keys of the data plane, the admin token of the control plane, the cache salt of a tenant.

Secrets are compared as SHA-256 digests, in constant time, over all of them without an early exit.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kvops import paths
from kvops.errors import ConfigError, InvalidApiKey
from kvops.node.keys.file import ApiKey, digest_of, read_keys, timestamp

DEFAULT_TENANT = "default"
_SECRET_BYTES = 32
_SECRET = re.compile(r"[!-~]{43,}")
"""As long as the secrets made here, in characters that a header can carry."""


@dataclass(frozen=True)
class Caller:
    tenant: str
    key_id: str | None


class Identifies(Protocol):
    def identify(self, authorization: str | None) -> Caller:
        """The caller behind an `Authorization` header. Raises InvalidApiKey."""


class NoKeys:
    """No keys are configured: the node listens on loopback only, and everyone is tenant `default`."""

    def identify(self, authorization: str | None) -> Caller:
        return Caller(DEFAULT_TENANT, None)


class KeyRing:
    """The API keys of a node. An empty ring lets nobody in: all of its keys were revoked."""

    def __init__(self, keys: Sequence[ApiKey]) -> None:
        self.replace(keys)

    @property
    def keys(self) -> list[ApiKey]:
        return [key for _, key in self._known]

    def replace(self, keys: Sequence[ApiKey]) -> None:
        """All at once: a request sees the ring before or the ring after, never a part of either."""
        self._known = tuple((key.digest, key) for key in keys)

    def identify(self, authorization: str | None) -> Caller:
        """The caller behind an `Authorization` header. Raises InvalidApiKey."""
        presented = bearer(authorization)
        if presented is None:
            raise InvalidApiKey(
                "no API key was sent.", hint="Send the header `Authorization: Bearer <key>`."
            )
        digest = digest_of(presented)
        same = hmac.compare_digest
        matches = [key for known, key in self._known if same(known, digest)]  # all of them, always
        if not matches:
            raise InvalidApiKey("the API key is not known to this node.")
        found = matches[-1]
        if found.expires is not None and found.expired(time.time()):
            raise InvalidApiKey(f"the API key expired at {timestamp(found.expires)}.")
        return Caller(found.tenant, found.id)


class AdminToken:
    """The token of the control plane: made once, kept in the node's folder with mode 0600."""

    def __init__(self, file: Path) -> None:
        self._digest = digest_of(_kept_secret(file))

    def accepts(self, authorization: str | None) -> bool:
        presented = bearer(authorization)
        return presented is not None and hmac.compare_digest(self._digest, digest_of(presented))


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


def keys_file(configured: Path | None) -> Path | None:
    """`server.api_keys_file`, else what KVOPS_API_KEYS_FILE names. Raises ConfigError for keys from two places."""
    pointed = os.environ.get("KVOPS_API_KEYS_FILE")
    plain = os.environ.get("KVOPS_API_KEYS")
    sources = [name for name, value in (("server.api_keys_file", configured), ("KVOPS_API_KEYS", plain),
                                        ("KVOPS_API_KEYS_FILE", pointed)) if value]  # fmt: skip
    if len(sources) > 1:
        raise ConfigError(f"API keys come from {' and '.join(sources)}", hint="leave one of them")
    return configured or (Path(pointed) if pointed else None)


def load_keys(configured: Path | None) -> KeyRing | NoKeys:
    """Keys of the keys file, else of KVOPS_API_KEYS. Raises ConfigError."""
    file, plain = keys_file(configured), os.environ.get("KVOPS_API_KEYS")
    if file is not None:
        return KeyRing(read_keys(file))
    return KeyRing(_plain_keys(plain)) if plain else NoKeys()


def _plain_keys(text: str) -> list[ApiKey]:
    keys = [part.strip() for part in text.split(",") if part.strip()]
    if not keys:
        raise ConfigError("KVOPS_API_KEYS holds no key", hint="separate keys by commas")
    return [ApiKey(f"env-{at}", DEFAULT_TENANT, digest_of(key)) for at, key in enumerate(keys)]


def _kept_secret(file: Path) -> str:
    """The secret in `file`, made at the first call. Raises ConfigError for one that is open, cut or weak."""
    try:
        if not file.exists():
            paths.write_atomic(file, secrets.token_urlsafe(_SECRET_BYTES).encode())
    except OSError as error:
        raise ConfigError(f"cannot write the secret {file}: {error.strerror}") from None
    return check_secret(file)


def check_secret(file: Path) -> str:
    """The secret in `file`. Raises ConfigError for one that is open, cut or weak."""
    try:
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

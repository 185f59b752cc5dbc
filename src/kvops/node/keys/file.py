"""The keys file: a YAML list of `{id, tenant, sha256}` with `created`, `expires` and `replaced_by`.

It holds digests, never a key.
"""

from __future__ import annotations

import hashlib
import math
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from kvops import paths
from kvops.errors import ConfigError

MAX_KEYS = 10_000
MAX_FILE_BYTES = 8 * 2**20
_NEEDED = {"id", "tenant", "sha256"}
_MAY_HAVE = _NEEDED | {"created", "expires", "replaced_by"}
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The C one reads 10,000 rows in a second instead of many."""
_HEAD = "# Written by `kvops keys`, which keeps no comments. A node that runs reads it again when it changes.\n"


@dataclass(frozen=True)
class ApiKey:
    id: str
    tenant: str
    digest: bytes
    """SHA-256 of the key."""
    created: float | None = None
    """Unix seconds."""
    expires: float | None = None
    """Unix seconds; None: never."""
    replaced_by: str | None = None
    """The id of the key that a rotation gave it as its successor."""

    def expired(self, now: float) -> bool:
        return self.expires is not None and self.expires <= now


def default_file() -> Path:
    return paths.config_dir() / "keys.yaml"


def digest_of(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


def read_keys(file: Path) -> list[ApiKey]:
    """Empty for `[]`, the file of which every key was revoked. Raises ConfigError for anything doubtful."""
    data = _read_private(file)
    try:
        rows = yaml.load(data, _LOADER)
    except (yaml.YAMLError, RecursionError, ValueError):
        raise ConfigError(f"{file} is not valid YAML") from None
    if not isinstance(rows, list) or len(rows) > MAX_KEYS:
        raise ConfigError(
            f"{file} is no list of at most {MAX_KEYS} keys",
            hint="rows are {id, tenant, sha256}; a file without a key is []",
        )
    keys = [_read_row(row, f"{file} row {at + 1}") for at, row in enumerate(rows)]
    if len({key.id for key in keys}) < len(keys):
        raise ConfigError(f"{file} names a key id twice")
    return keys


def write_keys(file: Path, keys: Iterable[ApiKey]) -> None:
    """Replaces the file whole. One that exists keeps its owner and whether its group may read it. Raises OSError."""
    rows = [_row(key) for key in keys]
    text = _HEAD + yaml.safe_dump(rows, sort_keys=False, allow_unicode=True)
    target = file.resolve()  # a link stays one
    before = target.stat() if target.exists() else None
    mode = 0o600 if before is None else 0o600 | before.st_mode & 0o040
    paths.write_atomic(target, text.encode(), mode=mode)
    if before is not None and (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
        os.chown(target, before.st_uid, before.st_gid)


def timestamp(moment: float) -> str:
    """RFC 3339 in UTC, to the second, rounded up: `2026-12-31T00:00:00Z`."""
    return datetime.fromtimestamp(math.ceil(moment), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _read_private(file: Path) -> bytes:
    try:
        with paths.open_regular(file) as handle:
            mode = stat.S_IMODE(os.fstat(handle.fileno()).st_mode)
            data = handle.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        raise ConfigError(
            f"cannot read the API keys file {file}: {error.strerror}",
            hint=f"kvops keys create --file {file} makes one" if missing else "",
        ) from None
    if mode & 0o007:
        raise ConfigError(
            f"{file} is readable by everyone (mode {mode:04o})", hint=f"chmod 600 {file}"
        )
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{file} is over the bound of {MAX_FILE_BYTES} bytes")
    return data


def _read_row(row: Any, where: str) -> ApiKey:
    if not isinstance(row, dict) or not _NEEDED <= row.keys() <= _MAY_HAVE:
        raise ConfigError(
            f"{where} is not {{id, tenant, sha256}} with created, expires and replaced_by"
        )
    texts = [row[name] for name in (*sorted(_NEEDED), "replaced_by") if name in row]
    if not all(isinstance(text, str) and 0 < len(text) <= 128 for text in texts):
        raise ConfigError(f"{where}: id, tenant, sha256, replaced_by: 1 to 128 characters each")
    created, expires = (_read_moment(row, name, where) for name in ("created", "expires"))
    digest, heir = _read_digest(row["sha256"], where), row.get("replaced_by")
    return ApiKey(row["id"], row["tenant"], digest, created, expires, heir)


def _read_digest(text: str, where: str) -> bytes:
    try:
        digest = bytes.fromhex(text)
    except ValueError:
        digest = b""
    if len(digest) != 32:
        raise ConfigError(f"{where}: sha256 is not 64 hex digits", hint="printf %s KEY | sha256sum")
    if digest == digest_of(""):
        raise ConfigError(f"{where}: sha256 is that of an empty key", hint="was $KEY set?")
    return digest


def _read_moment(row: dict[str, Any], name: str, where: str) -> float | None:
    """YAML makes a datetime of an unquoted time by itself."""
    value = row.get(name)
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
        aware = isinstance(moment, datetime) and moment.tzinfo is not None
        seconds = moment.timestamp() if aware else None
    except (ValueError, OverflowError):
        seconds = None
    if seconds is None:
        raise ConfigError(
            f"{where}: {name} is no time with a zone", hint="write it as 2026-12-31T00:00:00Z"
        )
    return float(seconds)


def _row(key: ApiKey) -> dict[str, str]:
    row = {"id": key.id, "tenant": key.tenant, "sha256": key.digest.hex()}
    for name, moment in (("created", key.created), ("expires", key.expires)):
        if moment is not None:
            row[name] = timestamp(moment)
    if key.replaced_by is not None:
        row["replaced_by"] = key.replaced_by
    return row

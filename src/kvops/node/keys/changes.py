"""What an operator does to a keys file: create, rotate, revoke. Each is one change of the whole file, one at a time."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from kvops import paths
from kvops.errors import UsageError
from kvops.node.keys.file import MAX_KEYS, ApiKey, digest_of, read_keys, write_keys

PREFIX = "kvk_"
"""Tells people, and scanners for secrets, what it is."""
_SECRET_BYTES = 32
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}")


@dataclass(frozen=True)
class NewKey:
    secret: str
    """Exists here and with whoever is given it, and nowhere else."""
    key: ApiKey


def create(file: Path, tenant: str, key_id: str | None, lifetime: float | None) -> NewKey:
    """A key more, in a new file if there is none. `lifetime` in seconds, None for ever.

    Raises UsageError for a name that is taken or none, ConfigError for a file that is not one of keys.
    """
    _check_name("tenant", tenant)
    with _edited(file) as keys:
        return _add(keys, tenant, key_id, lifetime)


def rotate(
    file: Path, key_id: str, overlap: float, *, new_id: str | None, lifetime: float | None
) -> tuple[NewKey, ApiKey]:
    """A new key of the same tenant, and the old one as it is now: it expires after `overlap` seconds.

    The new one lasts `lifetime` seconds, by default as long as the old one was made for.
    Raises UsageError, for a key that was rotated before too: its lifetime is cut, and it has a successor. ConfigError.
    """
    with _edited(file) as keys:
        old, now = _find(keys, key_id, file), time.time()
        if old.expired(now):
            raise UsageError(
                f"the key {key_id!r} has expired: nobody uses it any more",
                hint=f"kvops keys create --tenant {old.tenant}",
            )
        if old.replaced_by is not None:
            raise _is_ending(keys, old)
        if lifetime is None and old.expires is not None and old.created is not None:
            lifetime = old.expires - old.created
        new = _add(keys, old.tenant, new_id, lifetime)
        ends = now + overlap
        ending = replace(
            old,
            expires=ends if old.expires is None else min(ends, old.expires),
            replaced_by=new.key.id,
        )
        keys[keys.index(old)] = ending
        return new, ending


def revoke(file: Path, ids: Collection[str]) -> list[ApiKey]:
    """Forget keys; all of them or none. Raises UsageError for an id that is not there, ConfigError."""
    with _edited(file) as keys:
        gone = [_find(keys, key_id, file) for key_id in ids]
        keys[:] = [key for key in keys if key not in gone]
        return gone


def revoke_expired(file: Path) -> list[ApiKey]:
    """Forget the keys that nobody can use any more. Raises ConfigError."""
    with _edited(file) as keys:
        now = time.time()
        gone = [key for key in keys if key.expired(now)]
        keys[:] = [key for key in keys if key not in gone]
        return gone


def _add(keys: list[ApiKey], tenant: str, key_id: str | None, lifetime: float | None) -> NewKey:
    name = f"{tenant[:100]}-{secrets.token_hex(4)}" if key_id is None else key_id
    _check_name("id", name)
    if any(key.id == name for key in keys):
        raise UsageError(
            f"there is a key {name!r} already", hint="leave --id out, or choose another"
        )
    if len(keys) >= MAX_KEYS:
        raise UsageError(
            f"the file holds {MAX_KEYS} keys, its bound", hint="kvops keys revoke --expired"
        )
    secret, now = PREFIX + secrets.token_urlsafe(_SECRET_BYTES), time.time()
    expires = None if lifetime is None else now + lifetime
    key = ApiKey(name, tenant, digest_of(secret), created=now, expires=expires)
    keys.append(key)
    return NewKey(secret, key)


def _find(keys: list[ApiKey], key_id: str, file: Path) -> ApiKey:
    found = next((key for key in keys if key.id == key_id), None)
    if found is None:
        raise UsageError(f"there is no key {key_id!r} in {file}", hint="kvops keys list")
    return found


def _is_ending(keys: list[ApiKey], old: ApiKey) -> UsageError:
    heir = old.replaced_by
    if any(key.id == heir for key in keys):
        return UsageError(
            f"{old.id} is already ending; its successor is {heir}", hint=f"kvops keys rotate {heir}"
        )
    return UsageError(
        f"{old.id} is already ending; its successor {heir} is revoked",
        hint=f"kvops keys create --tenant {old.tenant}",
    )


def _check_name(what: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{what} {name[:150]!r} is not valid",
            hint="use letters, digits, . _ - (at most 128, a letter or digit first)",
        )


@contextmanager
def _edited(file: Path) -> Iterator[list[ApiKey]]:
    """The rows, written back whole if the block ends well and changed any. Two who edit at once take turns."""
    paths.make_private(file.absolute().parent)
    with file.with_name(f".{file.name}.lock").open("a") as lock:
        os.fchmod(lock.fileno(), 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        keys = read_keys(file) if file.exists() else []
        before = list(keys)
        yield keys
        if keys != before:
            write_keys(file, keys)

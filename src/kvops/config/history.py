"""Every version of a node's settings that was applied: what the file said, when, by whom, and whether a node served it.

Invariants: a version is on disk, whole, before it counts; it counts once the index names it, and `current.json` follows
the index. What it says lies under its own SHA-256, which is checked
when it is read. At most `KEPT` versions are kept; the current one and the last good one always.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import pwd
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from kvops import paths, registry
from kvops.config.load import LoadedConfig
from kvops.errors import ConfigError

KEPT = 50
MAX_NOTE = 200
MAX_AUTHOR = 64


_LAST_SECOND = 253402300799
"""Of the year 9999."""


class Version(msgspec.Struct, frozen=True, kw_only=True):
    id: Annotated[int, msgspec.Meta(ge=1)]
    at: Annotated[float, msgspec.Meta(ge=0, le=_LAST_SECOND)]
    """Unix seconds."""
    author: str
    """User of the operating system, as the client said."""
    config_hash: str
    """Of the settings that came of it, with the command line and the environment of then."""
    digest: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    """SHA-256 of what the file said, in canonical JSON."""
    note: str = ""
    good: bool = False
    """A node became ready with all of it."""
    restores: int | None = None
    """The version that a rollback went back to."""
    started: bool = False
    """A node was started with it."""
    file: str | None = None
    """The file that the node was started with, which its next start reads again."""
    options: dict[str, Any] = {}
    """What the command line of that start said, by dotted key."""

    @property
    def origin(self) -> int:
        """The version whose settings these are."""
        return self.id if self.restores is None else self.restores


class Index(msgspec.Struct, frozen=True):
    versions: tuple[Version, ...]
    """The oldest first; the last one is current."""


@dataclass(frozen=True)
class History:
    """Of one node; `folder` need not be there yet."""

    folder: Path

    @classmethod
    def of(cls, node: str) -> History:
        """Raises UsageError for what can be no node's name."""
        return cls(registry.node_dir(node) / "config")

    @property
    def current_file(self) -> Path:
        """What the current version says, for `kvops node start -c`."""
        return self.folder / "current.json"

    def versions(self) -> tuple[Version, ...]:
        """The oldest first; the last one is current. Raises ConfigError for an index that cannot be read."""
        versions = self._read()
        if not self._follows(versions):
            with contextlib.suppress(OSError), self._lock():
                versions = self._read()
                self._follow(versions)
        return versions

    def _read(self) -> tuple[Version, ...]:
        try:
            data = (self.folder / "index.json").read_bytes()
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise self._broken(str(error.strerror)) from None
        try:
            return msgspec.json.decode(data, type=Index).versions
        except (msgspec.DecodeError, RecursionError):
            raise self._broken("it is not what was written") from None

    def current(self) -> Version | None:
        versions = self.versions()
        return versions[-1] if versions else None

    def version(self, number: int) -> Version:
        """Raises ConfigError for one that is not kept."""
        versions = self.versions()
        found = next((one for one in versions if one.id == number), None)
        if found is None:
            kept = (
                f"v{versions[0].id} to v{versions[-1].id} are kept" if versions else "there is none"
            )
            raise ConfigError(f"there is no version {number}", hint=f"kvops config history: {kept}")
        return found

    def last_good(self) -> Version:
        """What one step back leads to: the last good version that came before the current settings, and is not them.

        Raises ConfigError when there is none.
        """
        versions = self.versions()
        current = versions[-1] if versions else None
        for one in reversed(versions):
            if current and one.good and one.id < current.origin and one.digest != current.digest:
                return one
        raise ConfigError(
            "there is no earlier version with which a node was ready",
            hint="see kvops config history; kvops config rollback N goes to any of them",
        )

    def document(self, version: Version) -> dict[str, Any]:
        """What the file said. Raises ConfigError for one that is gone or changed."""
        file = self._object(version.digest)
        try:
            data = file.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"version {version.id} cannot be read: {error.strerror}", hint=f"see {file}"
            ) from None
        if hashlib.sha256(data).hexdigest() != version.digest:
            raise ConfigError(
                f"version {version.id} is not what was stored: the SHA-256 of {file} differs",
                hint="go to another version: kvops config history",
            )
        found: dict[str, Any] = json.loads(data)
        return found

    def record(
        self,
        loaded: LoadedConfig,
        author: str,
        note: str = "",
        restores: int | None = None,
        *,
        started: bool = False,
    ) -> Version:
        """Make `loaded` the current version; the current one again if it says the same. Raises ConfigError, OSError."""
        data = _canonical(loaded.document)
        digest = hashlib.sha256(data).hexdigest()
        with self._lock():
            versions = self._read()
            last = versions[-1] if versions else None
            if last and (last.digest, last.config_hash) == (digest, loaded.config_hash):
                told = _told(last, loaded, started=last.started or started)
                if told != last:
                    self._write((*versions[:-1], told))
                self._follow(versions)
                return told
            version = Version(
                id=last.id + 1 if last else 1,
                at=time.time(),
                author=author[:MAX_AUTHOR],
                config_hash=loaded.config_hash,
                digest=digest,
                note=note[:MAX_NOTE],
                restores=restores,
            )
            version = _told(version, loaded, started=started)
            paths.write_atomic(self._object(digest), data)
            self._write((*versions, version))
            with contextlib.suppress(
                OSError
            ):  # the index counts, and whoever reads it next tries again
                self._follow((version,))
        return version

    def put_aside(self) -> Path:
        """An index that cannot be read, so that a new one may begin; where it lies then. Raises OSError."""
        index = self.folder / "index.json"
        return index.rename(index.with_name(f"index.json.broken-{int(time.time())}"))

    def mark_good(self, number: int) -> None:
        """A node became ready with all of it. Raises ConfigError, OSError."""
        with self._lock():
            versions = self._read()
            if any(one.id == number and not one.good for one in versions):
                self._write(tuple(_good(one) if one.id == number else one for one in versions))

    def _write(self, versions: tuple[Version, ...]) -> None:
        kept = _bounded(versions)
        paths.write_atomic(self.folder / "index.json", msgspec.json.encode(Index(kept)))
        named = {one.digest for one in kept}
        for file in (self.folder / "versions").glob("*.json"):
            if file.stem not in named:
                file.unlink(missing_ok=True)

    def _follows(self, versions: tuple[Version, ...]) -> bool:
        """Whether `current.json` is what the current version says."""
        if not versions:
            return True
        try:
            data = self.current_file.read_bytes()
        except OSError:
            return False
        return hashlib.sha256(data).hexdigest() == versions[-1].digest

    def _follow(self, versions: tuple[Version, ...]) -> None:
        """Where it cannot be written, whoever reads the index next tries again. What is changed is not copied."""
        if self._follows(versions):
            return
        with contextlib.suppress(OSError):
            data = self._object(versions[-1].digest).read_bytes()
            if hashlib.sha256(data).hexdigest() == versions[-1].digest:
                paths.write_atomic(self.current_file, data)

    def _object(self, digest: str) -> Path:
        return self.folder / "versions" / f"{digest}.json"

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """One writer at a time: a node, or a command while none runs."""
        with (paths.make_private(self.folder) / "lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _broken(self, why: str) -> ConfigError:
        file = self.folder / "index.json"
        return ConfigError(
            f"the history of settings cannot be read: {file}: {why}",
            hint=f"mv {file} {file}.broken begins a new one; what the versions said stays in {self.folder}",
        )


def user() -> str:
    """Who runs this process, by name where the system knows one."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


def _canonical(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, indent=2, ensure_ascii=False).encode() + b"\n"


def _good(version: Version) -> Version:
    return msgspec.structs.replace(version, good=True)


def _told(version: Version, loaded: LoadedConfig, *, started: bool) -> Version:
    """The same settings, from where they were taken last."""
    return msgspec.structs.replace(
        version,
        started=started,
        file=None if loaded.file is None else str(loaded.file),
        options=dict(loaded.overrides),
    )


def _bounded(versions: tuple[Version, ...]) -> tuple[Version, ...]:
    """The last `KEPT`, and in place of the oldest of them the last good one."""
    kept = versions[-KEPT:]
    if any(one.good for one in kept):
        return kept
    good = [one for one in versions if one.good]
    return (*good[-1:], *kept[1:]) if len(versions) > KEPT else kept

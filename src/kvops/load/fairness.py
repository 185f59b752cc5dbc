"""Who is watched and who presses, in the scenarios that ask whether one hurts the other."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kvops.errors import UsageError
from kvops.paths import open_regular

ALONE, BESIDE = "alone", "beside"
MAX_KEYS_FILE = 2**20


class Roles(msgspec.Struct, frozen=True):
    watched: str
    pressing: str
    beside: str
    """In a sentence."""

    def name(self, phase: str) -> str:
        """Of a request of the watched one in a phase."""
        return f"{self.watched} {phase}"


ROLES = {
    "whale_and_minnows": Roles("minnow", "whale", "beside a whale"),
    "noisy_tenant": Roles("quiet", "noisy", "beside the noise"),
}


def read_keys(text: str) -> dict[str, str]:
    """Keys by tenant, from lines `name key`; `#` begins a comment. Raises ValueError that names the line, no key."""
    keys: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2 or not words[1].isascii() or words[0] in keys:
            raise ValueError(f"line {number} is not a new name and its key")
        keys[words[0]] = words[1]
    return keys


class Tenants(msgspec.Struct, frozen=True):
    """Keys of the two sides; None: the run's own key."""

    quiet: str | None = None
    noisy: tuple[str, ...] = ()

    def key_of_noise(self, number: int) -> str | None:
        return self.noisy[number % len(self.noisy)] if self.noisy else None


def tenants(file: str | None, quiet: str) -> Tenants:
    """`quiet`: the name of the watched tenant, all others make noise. Raises UsageError."""
    if file is None:
        return Tenants()
    try:
        with open_regular(Path(file)) as opened:
            keys = read_keys(opened.read(MAX_KEYS_FILE).decode())
    except (OSError, ValueError) as error:
        raise UsageError(
            f"--tenant-keys {file}: {error}", hint="one tenant a line: quiet KEY"
        ) from error
    if quiet not in keys or len(keys) < 2:
        raise UsageError(
            f"--tenant-keys {file}: holds {', '.join(keys) or 'no tenant'}",
            hint=f"it takes a line `{quiet} KEY` and one for each noisy tenant",
        )
    return Tenants(keys[quiet], tuple(key for name, key in keys.items() if name != quiet))

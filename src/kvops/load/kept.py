"""Reading back what a run has kept, whatever ended it: whole lines count, the rest is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from kvops.errors import RunUnreadable
from kvops.load.records import compact

T = TypeVar("T", bound=msgspec.Struct)


class Kept(msgspec.Struct, Generic[T], frozen=True):
    """The lines of a file that could be read, in its order."""

    lines: list[T]
    damage: tuple[str, ...] = ()
    """What of the file is lost, in words; empty: nothing."""


def read(path: Path, kind: type[T]) -> Kept[T]:
    """A file that is not there holds no lines. Raises RunUnreadable when it cannot be read at all."""
    decoder, lines, broken, cut = msgspec.json.Decoder(kind), list[T](), 0, False
    try:
        for line in _lines(path):
            cut = not line.endswith(b"\n")
            try:
                lines.append(compact(decoder.decode(line)))
            except (msgspec.DecodeError, RecursionError):
                broken += 1
    except OSError as error:
        raise RunUnreadable(f"{path} cannot be read: {error.strerror}") from error
    return Kept(lines, tuple(_damage(path.name, broken, cut)))


def _lines(path: Path) -> Iterator[bytes]:
    if not path.exists():
        return
    with path.open("rb", buffering=2**20) as file:
        yield from file


def _damage(name: str, broken: int, cut: bool) -> Iterator[str]:
    """A last line without its end counts as broken only if it is."""
    half = 1 if cut and broken else 0
    if half:
        yield f"{name} ends in a line that was not written whole: it is left out"
    if broken > half:
        yield f"{broken - half} lines of {name} cannot be read: they are left out"

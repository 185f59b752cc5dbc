"""What a chain says of its own beginning: the first `seq` that `audit.keep` has left, told at the start of each file
and by each process. What is gone beyond that was removed by somebody else.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Sequence
from pathlib import Path

import msgspec

KEPT = "kept"
_MARK = b'"event":"kept"'
"""Cannot be in a text of a record, whose quotes are escaped."""


class _Told(msgspec.Struct):
    start: int = msgspec.field(name="from")


def first_seq(file: Path) -> int:
    """By its name."""
    number = file.stem.removeprefix("audit-")
    return int(number) if number.isdecimal() else 1


def told_first(files: Sequence[Path]) -> int | None:
    """What the youngest file that holds a line says; None before the first that is told: there is nothing to keep to.

    A file from before chains told of this says nothing, and is believed.
    """
    written = [file for file in files if file.stat().st_size]
    if not written:
        return None
    return _last_told(written[-1]) or first_seq(files[0])


def let_go(files: Sequence[Path], keep: int) -> None:
    """Remove the oldest over `keep`. What cannot be removed is tried again with the next file."""
    for old in files[:-keep]:
        with contextlib.suppress(OSError):
            old.unlink()


def _last_told(file: Path) -> int | None:
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as text:
        at = text.rfind(_MARK)
        while at >= 0:
            begin, end = text.rfind(b"\n", 0, at) + 1, text.find(b"\n", at)
            with contextlib.suppress(
                msgspec.MsgspecError
            ):  # a line that was cut short told nothing
                return msgspec.json.decode(text[begin:end], type=_Told).start
            at = text.rfind(_MARK, 0, at)
    return None

"""Faults on purpose: named points of the code that do nothing unless KVOPS_FAILPOINTS turns them on.

    KVOPS_FAILPOINTS="engine.step.raises@40, log.write.enospc@1-20, audit.fsync.eio=hang:2"

A fault is `name[=action[:argument]][@times]`. Without an action the point does what its name says. `@3` is the third
time that a process gets there, `@3-5` the third to the fifth, `@3+` all from the third on; without, every time.
`@/path` in place of faults names a file that holds them: a process reads it once, when it starts.
Depends on nothing but the errors.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kvops.errors import ConfigError

VARIABLE = "KVOPS_FAILPOINTS"

POINTS: Mapping[str, str] = {
    "engine.step.raises": "raise",
    "engine.step.hangs": "hang",
    "engine.allocation.fails": "trip",
    "engine.logits.nan": "trip",
    "model.read.short": "trip",
    "log.write.enospc": "raise:ENOSPC",
    "audit.fsync.eio": "raise:EIO",
    "sse.write.epipe": "raise:EPIPE",
    "disk.rename.crash": "kill",
    "request.ends.leaks": "trip",
}
"""Every point, and what it does unless told otherwise. After `trip` the code at the point does the fault itself."""

_SYNTAX = re.compile(
    r"(?P<name>[a-z.]+)(=(?P<action>raise|hang|kill|trip)(:(?P<argument>[\w.]+))?)?"
    r"(@(?P<first>[1-9]\d{0,8})(?P<range>\+|-(?P<last>[1-9]\d{0,8}))?)?"
)
_FOR_EVER = 10.0**9


@dataclass
class _Fault:
    action: str
    argument: str
    first: int
    last: float
    _reached: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def happens(self) -> bool:
        """Whether it does this time."""
        return self.first <= next(self._reached) <= self.last


_armed: dict[str, _Fault] = {}


def reach(name: str) -> bool:
    """The code got to the point `name`. True: the caller is to do the fault; False: nothing is to happen.

    A fault that can be done here is: an OSError or RuntimeError, a hang, or the end of the process.
    """
    if not _armed:
        return False
    fault = _armed.get(name)
    return fault is not None and fault.happens() and _do(name, fault)


def arm(faults: str) -> None:
    """Turn on exactly `faults`; none for an empty text. Raises ConfigError."""
    _armed.clear()
    _armed.update(_parse(part.strip()) for part in faults.split(",") if part.strip())


def arm_from_environment() -> None:
    """What each process does once, before anything else. Raises ConfigError."""
    value = os.environ.get(VARIABLE, "").strip()
    arm(_read(Path(value[1:])) if value.startswith("@") else value)


def armed() -> tuple[str, ...]:
    """The points that are on."""
    return tuple(_armed)


def _read(file: Path) -> str:
    """Nothing is on where there is no file."""
    try:
        return file.read_text().strip().replace("\n", ",")
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise ConfigError(f"{VARIABLE} names {file}, which cannot be read: {error}") from None


def _parse(text: str) -> tuple[str, _Fault]:
    found = _SYNTAX.fullmatch(text)
    if found is None or found["name"] not in POINTS:
        raise ConfigError(
            f"{VARIABLE}: {text[:80]!r} is no failpoint",
            hint=f"write name[=raise|hang|kill|trip[:argument]][@times]; the names are {', '.join(POINTS)}",
        )
    action, _, argument = POINTS[found["name"]].partition(":")
    if found["action"]:
        action, argument = found["action"], found["argument"] or ""
    _check_argument(text, action, argument)
    return found["name"], _Fault(action, argument, *_times(text, found))


def _times(text: str, found: re.Match[str]) -> tuple[int, float]:
    first = int(found["first"] or 1)
    last = float(found["last"] or (first if found["first"] and not found["range"] else "inf"))
    if last < first:
        raise ConfigError(f"{VARIABLE}: {text[:80]!r} ends before it begins")
    return first, last


def _check_argument(text: str, action: str, argument: str) -> None:
    known = {
        "raise": not argument or hasattr(errno, argument),
        "hang": not argument or argument.replace(".", "", 1).isdecimal(),
    }
    if not known.get(action, not argument):
        raise ConfigError(
            f"{VARIABLE}: {text[:80]!r} has the argument {argument!r}, which {action} cannot take",
            hint="raise takes the name of an errno, like EIO; hang takes seconds; the others take none",
        )


def _do(name: str, fault: _Fault) -> bool:
    match fault.action:
        case "raise" if fault.argument:
            number = getattr(errno, fault.argument)
            raise OSError(number, f"{os.strerror(number)} (failpoint {name})")
        case "raise":
            raise RuntimeError(f"failpoint {name}")
        case "hang":
            time.sleep(float(fault.argument or _FOR_EVER))
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
    return fault.action == "trip"

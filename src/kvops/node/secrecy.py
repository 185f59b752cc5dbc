"""What the processes of a node keep to themselves: the text of an exception, which may quote a request, and the
memory of a crash. An error is told by its type and by where it happened."""

from __future__ import annotations

import contextlib
import resource
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

_FRAMES = 8


def trace_of(error: BaseException) -> list[str]:
    """The last places that it came through, without values: `file.py:12 function`."""
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    return [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]


def facts_of(error: BaseException) -> dict[str, Any]:
    """What a log line says of it."""
    return {"error": type(error).__name__, "frames": trace_of(error)}


def described(error: BaseException) -> str:
    """`ValueError at engine.py:12 step`."""
    places = trace_of(error)
    return f"{type(error).__name__} at {places[-1]}" if places else type(error).__name__


def forbid_core_files() -> None:
    """A core file holds prompts. A limit of one byte also keeps the kernel from piping one to a program, which 0
    does not (Linux, fs/coredump.c: do_coredump)."""
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_CORE)
        bound = 1 if hard == resource.RLIM_INFINITY else min(1, hard)
        resource.setrlimit(resource.RLIMIT_CORE, (bound, hard))


def on_uncaught(tell: Callable[[BaseException], None]) -> None:
    """What nobody catches, in a thread or a destructor, is told without its text in place of being printed."""

    def in_thread(found: threading.ExceptHookArgs) -> None:
        if found.exc_value is not None:
            tell(found.exc_value)

    def in_destructor(found: sys.UnraisableHookArgs) -> None:
        if found.exc_value is not None:
            tell(found.exc_value)

    threading.excepthook = in_thread
    sys.unraisablehook = in_destructor

"""Child processes that do not outlive their parent, also where it is killed without a word."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def dies_with_parent(number: signal.Signals) -> Callable[[], None] | None:
    """A `preexec_fn`: Linux sends the child `number` when this process dies. None elsewhere."""
    if not sys.platform.startswith("linux"):
        return None
    prctl, parent = ctypes.CDLL(None, use_errno=True).prctl, os.getpid()

    def arrange() -> None:
        prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:  # it died before that was said
            os._exit(128 + number)

    return arrange

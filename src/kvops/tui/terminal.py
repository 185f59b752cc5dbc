"""Ends the process within seconds once its terminal is gone, whatever the event loop is doing.

A hang-up alone is not enough: under nohup it is ignored, and a writer stuck on a dead terminal blocks the loop.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable

CHECK_SECONDS = 1.0
HANGUP_EXIT = 128 + signal.SIGHUP


def watch_terminal() -> None:
    """Call once, in the main thread, when standard input is a terminal."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    threading.Thread(
        target=_watch, args=(sys.stdin.fileno(),), name="terminal-watch", daemon=True
    ).start()


def leave_on_terminate(leave: Callable[[], None]) -> None:
    """SIGTERM puts the terminal back in order instead of leaving it raw. Call in the main thread."""
    signal.signal(signal.SIGTERM, lambda number, frame: leave())


def _watch(terminal: int) -> None:
    while os.isatty(terminal):
        time.sleep(CHECK_SECONDS)
    os._exit(HANGUP_EXIT)

"""Where the `kvops` command begins: Ctrl-C ends it quietly also while the rest is still being imported."""

from __future__ import annotations

import os
import signal

INTERRUPTED = 128 + signal.SIGINT


def run() -> None:
    """Console script; `kvops.cli.main` has the exit codes."""
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(INTERRUPTED))
    from kvops.cli import main

    signal.signal(signal.SIGINT, signal.default_int_handler)
    main.run()

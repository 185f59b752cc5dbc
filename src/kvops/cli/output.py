"""The console that reports are printed on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 120


def report_console(*, stderr: bool = False) -> Console:
    """As wide as the terminal, also through a pipe; where there is none, wide enough that no table is squeezed."""
    from rich.console import Console

    console = Console(stderr=stderr)
    if not console.is_terminal and not _width_is_known():
        console.width = max(console.width, PIPE_WIDTH)
    return console


def _width_is_known() -> bool:
    """By COLUMNS, or by the terminal that another stream is still at."""
    return "COLUMNS" in os.environ or any(map(os.isatty, (0, 1, 2)))

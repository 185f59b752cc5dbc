"""The console that reports are printed on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 120


def report_console(*, stderr: bool = False) -> Console:
    """As wide as the terminal; where there is none, wide enough that no cell of a table is squeezed."""
    from rich.console import Console

    console = Console(stderr=stderr)
    if not console.is_terminal:
        console.width = max(console.width, PIPE_WIDTH)
    return console

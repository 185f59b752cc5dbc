"""`kvops tui`."""

from __future__ import annotations


def tui() -> None:
    raise SystemExit(1)

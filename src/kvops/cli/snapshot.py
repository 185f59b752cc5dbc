"""`kvops snapshot`."""

from __future__ import annotations


def snapshot() -> None:
    raise SystemExit(1)

"""`kvops demo`."""

from __future__ import annotations


def demo() -> None:
    raise SystemExit(1)

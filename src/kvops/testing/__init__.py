"""Nodes that are broken on purpose: what shows that the gate finds what it is there to find."""

from __future__ import annotations

from kvops.testing.defects import BY_NAME, DEFECTS, Defect
from kvops.testing.node import KEY, OTHER_KEY, TOKEN, FaultyNode, serve
from kvops.testing.words import LIMIT, MODEL

__all__ = [
    "BY_NAME",
    "DEFECTS",
    "KEY",
    "LIMIT",
    "MODEL",
    "OTHER_KEY",
    "TOKEN",
    "Defect",
    "FaultyNode",
    "serve",
]

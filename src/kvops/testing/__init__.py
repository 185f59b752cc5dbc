"""Nodes that are broken on purpose: what shows that the gate finds what it is there to find."""

from __future__ import annotations

from kvops.testing.node import KEY, LIMIT, MODEL, TOKEN, FaultyNode, serve

__all__ = ["KEY", "LIMIT", "MODEL", "TOKEN", "FaultyNode", "serve"]

"""Text from outside on a terminal or a page: what a node, a file or a peer says may hold anything."""

from __future__ import annotations


def printable(text: str) -> str:
    """One line without control characters, those that turn the direction of writing among them."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)

"""How many things a body may hold, counted before a schema makes an object of each: 100,000 cost most of a second."""

from __future__ import annotations

from typing import Any

from kvops.config.schema import Limits
from kvops.errors import InvalidRequest

MAX_PARTS = 4096


def check_counts(value: Any, limits: Limits) -> None:
    """Raises InvalidRequest for more messages than the node takes, or more text parts in all of them.

    Only counts: what is of another shape is left to the schema, which names it.
    """
    messages = value.get("messages") if isinstance(value, dict) else None
    if not isinstance(messages, list):
        return
    if len(messages) > limits.messages:
        raise InvalidRequest(
            f"at most {limits.messages} messages are accepted; these are {len(messages)}.",
            param="messages",
            hint="Send fewer, or join the older ones.",
        )
    parts = sum(_parts(message) for message in messages)
    if parts > MAX_PARTS:
        raise InvalidRequest(
            f"at most {MAX_PARTS} text parts are accepted in all messages together; these are {parts}.",
            param="messages",
            hint="Join the parts of a message: they are read as one text.",
        )


def _parts(message: Any) -> int:
    content = message.get("content") if isinstance(message, dict) else None
    return len(content) if isinstance(content, list) else 0

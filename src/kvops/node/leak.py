"""What a failpoint leaks with a request, so that whoever looks for leaks can be seen to find them."""

from __future__ import annotations

import asyncio
import os

_MEMORY = 64 * 1024
_leaked: list[tuple[bytearray, int, asyncio.Task[bool]]] = []


def leak() -> None:
    """Memory, a file descriptor and a task."""
    never = asyncio.Event()
    _leaked.append((bytearray(os.urandom(_MEMORY)), os.dup(2), asyncio.create_task(never.wait())))

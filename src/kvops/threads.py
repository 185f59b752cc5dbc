"""Blocking work beside an event loop, in threads that nothing waits for when the process ends."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def in_thread(work: Callable[[], T], name: str) -> asyncio.Future[T]:
    """A daemon thread, unlike an executor's, is not waited for when the process ends."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def tell(act: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(act)

    def body() -> None:
        try:
            value = work()
        except Exception as error:
            failure = error
            tell(lambda: result.set_exception(failure))
        else:
            tell(lambda: result.set_result(value))

    threading.Thread(target=body, name=name, daemon=True).start()
    return result

"""The end of a process that does not wait for ever: neither for tasks, nor for threads that never return."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Coroutine, Iterator
from typing import Any

from kvops.errors import KvopsError

TASKS_SECONDS = 3.0
THREADS_SECONDS = 5.0
"""What is being written may be finished."""
_INTERRUPTED = 130


def run(main: Coroutine[Any, Any, None]) -> None:
    """As `asyncio.run`, which waits without a bound for tasks that are not cancelled and threads that hang."""
    runner = asyncio.Runner()  # not closed: that is what would wait
    try:
        runner.run(main)
    finally:
        loop = runner.get_loop()
        if left := asyncio.all_tasks(loop):
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.wait(left, timeout=TASKS_SECONDS))
        asyncio.set_event_loop(None)
        loop.close()


@contextlib.contextmanager
def ends_in_time() -> Iterator[None]:
    """Some seconds after this, whatever threads are left, the process ends: with 0, or the error's exit code."""
    code = 1
    try:
        yield
        code = 0
    except KvopsError as error:
        code = error.exit_code
        raise
    except KeyboardInterrupt:
        code = _INTERRUPTED
        raise
    finally:
        last = threading.Timer(THREADS_SECONDS, _end, (code,))
        last.daemon = True
        last.start()


def _end(code: int) -> None:
    """Without what Python does at an exit, which waits for the threads of every executor."""
    kept = {each.name for each in threading.enumerate() if not each.daemon} - {"MainThread"}
    with contextlib.suppress(OSError):
        os.write(2, f"ended without waiting for: {', '.join(sorted(kept)) or 'nothing'}\n".encode())
    os._exit(code)

"""The clock that the lines of a run are stamped by: Unix seconds that no step of the wall clock moves.

One look at the wall clock as the process starts; from there only the clock that never goes back. For processes that
live as long as a run.
"""

from __future__ import annotations

import time

_BEGAN = time.time() - time.perf_counter()


def now() -> float:
    return _BEGAN + time.perf_counter()

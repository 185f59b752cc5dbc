"""Memory for the pool, asked of the system while everything else is still being imported. No torch.

The first touch of a gigabyte can take two seconds (in a virtual machine), about as long as all imports. Invariant:
what is handed out is zero, and was written, so that every page is really there.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvops.machine import host_memory
from kvops.node.wire import Start

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_GPU = Path("/dev/nvidiactl")
_LINE = 64


class Reserve:
    def __init__(self, size: int) -> None:
        """`size`: bytes."""
        self._memory = mmap.mmap(-1, size)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._taken = 0
        self._touching = threading.Thread(target=self._touch, args=(size,), daemon=True)
        self._touching.start()

    @classmethod
    def of(cls, start: Start) -> Reserve | None:
        """For a pool in host memory whose size is said in bytes and is there; it is planned in earnest later."""
        size = start.pool.bytes
        elsewhere = start.device.startswith("cuda") or (start.device == "auto" and _GPU.exists())
        if size is None or elsewhere or size > host_memory().free // 2:
            return None
        return cls(size)

    def zeros(self, count: int, stored: type[np.generic]) -> NDArray[Any]:
        """`count` numbers; waits until the memory is there. What is no longer left comes from the system."""
        import numpy as np

        self._touching.join()
        size = count * np.dtype(stored).itemsize
        begin, self._taken = self._taken, self._taken + -(-size // _LINE) * _LINE
        if self._taken > len(self._memory):
            self._taken = begin
            array = np.empty(count, stored)
            array.fill(0)
            return array
        return np.frombuffer(self._memory, stored, count, begin)

    def _touch(self, size: int) -> None:
        ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(self._memory)), 0, size)

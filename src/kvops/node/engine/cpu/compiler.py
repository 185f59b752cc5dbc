"""How kernels are compiled: for this very CPU, once, kept on disk under the cache folder (0700).

The folder's name holds a digest of the kernels' sources: numba alone would miss a change in a file that a kernel
calls into. Import this before numba.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from kvops import paths

F = TypeVar("F", bound=Callable[..., Any])


def _folder() -> Path:
    """Within `NUMBA_CACHE_DIR`, if the environment says where."""
    given = os.environ.get("NUMBA_CACHE_DIR")
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    base = Path(given) if given else paths.cache_dir() / "numba"
    return paths.make_private(base / digest.hexdigest()[:16])


os.environ["NUMBA_CACHE_DIR"] = str(_folder())

import llvmlite.binding as llvm  # noqa: E402
import numba  # noqa: E402

_FEATURES = llvm.get_host_cpu_features()
_WIDE = bool(_FEATURES.get("avx512bw"))
_X86 = platform.machine() in ("x86_64", "AMD64")

SUPPORTED = _X86 and bool(_FEATURES.get("avx2")) and bool(_FEATURES.get("fma"))
"""Elsewhere the torch decoder serves."""
LANES = 16 if _WIDE else 8
"""32-bit numbers in a vector register."""
ROWS = 12 if _WIDE else 4
"""Rows of a register tile of integers: with two vectors of columns, the accumulators fill the registers."""
FLOAT_ROWS = 8 if _WIDE else 4
"""Rows of a register tile of floats: with more, LLVM spills (measured: 37 instead of 115 GFLOP/s)."""
COLUMNS = 2 * LANES
"""Columns of a register tile; packed weights are padded to a multiple of it."""


def kernel(function: F) -> F:
    """Compile without the GIL and without checks; multiply-adds may fuse, sums keep their order."""
    compiled = numba.njit(nogil=True, _nrt=False, error_model="numpy", fastmath={"contract"})
    return cast(F, compiled(function))


def reducing(function: F) -> F:
    """As `kernel`, and the compiler may split a sum over vector lanes: the same way for every row."""
    flags = {"contract", "reassoc", "nsz"}
    return cast(
        F, numba.njit(nogil=True, _nrt=False, error_model="numpy", fastmath=flags)(function)
    )


def entry(function: F) -> F:
    """A kernel that Python calls: only these are kept on disk, with all that they call."""
    compiled = numba.njit(
        nogil=True, cache=True, _nrt=False, error_model="numpy", fastmath={"contract"}
    )
    return cast(F, compiled(function))

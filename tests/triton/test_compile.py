"""Every kernel goes through Triton's compiler and NVIDIA's assembler, for which no GPU is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SHARED = 99 * 1024
"""Shared memory that a block may have on the GPUs with the least of it (compute capability 8.6 and 8.9)."""


def test_all_kernels_compile_and_fit_shared_memory(tmp_path: Path) -> None:
    script = Path(__file__).with_name("compile_all.py")
    done = subprocess.run(
        [sys.executable, script],
        env=os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    lines = done.stdout.splitlines()
    assert len(lines) == 28
    assert [line for line in lines if int(line.split()[0]) > SHARED] == []

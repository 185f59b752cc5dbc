"""What a GPU must be able to do before anything is loaded onto it."""

from __future__ import annotations

import importlib.util

import torch

from kvops.errors import ConfigError
from kvops.node.engine.cuda.pool import KvFormat

_LEAST = (8, 0)
"""Ampere: the first with bfloat16 in its matrix units."""
_LEAST_FP8 = (8, 9)
"""Ada: the first that converts e4m3 numbers."""


def require(kv: KvFormat, device: torch.device) -> None:
    """Raises ConfigError if this GPU, or what is installed, cannot run the kernels."""
    if importlib.util.find_spec("triton") is None:
        raise ConfigError(
            f"runtime.device: {device} needs Triton, which is not installed",
            hint="install kvops with the build of torch that is for CUDA, or set runtime.device: cpu",
        )
    check_capability(torch.cuda.get_device_capability(device), kv, device)


def check_capability(capability: tuple[int, int], kv: KvFormat, device: torch.device) -> None:
    """`capability`: as CUDA numbers it, (8, 0) for an A100. Raises ConfigError."""
    named = f"compute capability {capability[0]}.{capability[1]}"
    if capability < _LEAST:
        raise ConfigError(
            f"runtime.device: {device} has {named}, the kernels need 8.0 (Ampere) or newer",
            hint="set runtime.device: cpu",
        )
    if kv == "fp8" and capability < _LEAST_FP8:
        raise ConfigError(
            f"kv_cache.dtype: fp8 needs compute capability 8.9 (Ada) or newer, {device} has {named}",
            hint="use int8, which takes about as much and rounds less",
        )

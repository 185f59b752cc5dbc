"""What is looked at before a node starts, and how large its block pool shall be. Imports no torch, only finds it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import shutil
from pathlib import Path

import psutil

from kvops import paths
from kvops.config.schema import KvCache, NodeConfig
from kvops.errors import NodeStartError
from kvops.node.wire import PoolPlan
from kvops.units import format_bytes

CPU_POOL_BYTES = 2**30
GPU_POOL_FRACTION = 0.85
_DISK_NEEDED = 64 * 2**20


def check_machine(config: NodeConfig) -> str:
    """One line for the start-up report. Raises NodeStartError for what would make the start fail later."""
    free_disk = shutil.disk_usage(paths.make_private(paths.state_dir())).free
    if free_disk < _DISK_NEEDED:
        raise NodeStartError(
            f"{format_bytes(free_disk)} are free in {paths.state_dir()}, {format_bytes(_DISK_NEEDED)} are needed",
            hint="free some space, or move the folders with KVOPS_HOME",
        )
    memory = psutil.virtual_memory().available
    plan = pool_plan(config)
    asked = f"{format_bytes(plan.bytes)} for the pool of " if plan.bytes and not plan.blocks else ""
    return (
        f"python {platform.python_version()}, torch {_torch_version()}, "
        f"{asked}{format_bytes(memory)} free memory, {format_bytes(free_disk)} free disk"
    )


def pool_plan(config: NodeConfig) -> PoolPlan:
    cache = config.kv_cache
    given = cache.blocks or cache.bytes or cache.memory_fraction
    if given is None and may_use_gpu(config.runtime.device):
        return _plan(cache, None, GPU_POOL_FRACTION)
    if given is None:
        return _plan(cache, CPU_POOL_BYTES, None)
    return _plan(cache, cache.bytes, cache.memory_fraction)


def may_use_gpu(device: str) -> bool:
    """Whether `auto` would find a GPU: a driver is there, and a torch that was built for it."""
    if device != "auto":
        return device.startswith("cuda")
    spec = importlib.util.find_spec("torch")
    built = (
        spec is not None
        and spec.origin
        and (Path(spec.origin).parent / "lib/libtorch_cuda.so").exists()
    )
    return bool(built) and Path("/dev/nvidiactl").exists()


def _plan(cache: KvCache, pool_bytes: int | None, fraction: float | None) -> PoolPlan:
    defaults = PoolPlan(block_size=cache.block_size)
    return PoolPlan(
        block_size=cache.block_size,
        blocks=cache.blocks,
        bytes=pool_bytes,
        memory_fraction=defaults.memory_fraction if fraction is None else fraction,
        watermark=cache.watermark,
        prefix_caching=cache.prefix_caching,
        dtype=cache.dtype,
    )


def _torch_version() -> str:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        raise NodeStartError("torch is not installed", hint="pip install torch") from None

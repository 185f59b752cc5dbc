"""What is looked at before a node starts, and how large its block pool shall be. Imports no torch, only finds it.

What can be known from files and settings is refused here, before a port is bound or a process started.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from kvops import paths, registry
from kvops.config.schema import KvCache, NodeConfig
from kvops.errors import ConfigError, NodeStartError
from kvops.machine import host_memory
from kvops.node.pool_size import Needs, plan_blocks
from kvops.node.wire import PoolPlan
from kvops.units import format_bytes

if TYPE_CHECKING:
    from kvops.models.checkpoint import Checkpoint
    from kvops.models.spec import ModelSpec

CPU_POOL_BYTES = 2**30
GPU_POOL_FRACTION = 0.85
_DISK_NEEDED = 64 * 2**20
_LEAST_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1, "fp8": 1, "auto": 1}
"""Of a number, whatever the device makes of `auto`."""


def check_machine(config: NodeConfig) -> str:
    """One line for the start-up report. Raises NodeStartError for what would make the start fail later."""
    free_disk = shutil.disk_usage(paths.make_private(paths.state_dir())).free
    if free_disk < _DISK_NEEDED:
        raise NodeStartError(
            f"{format_bytes(free_disk)} are free in {paths.state_dir()}, {format_bytes(_DISK_NEEDED)} are needed",
            hint="free some space, or move the folders with KVOPS_HOME",
        )
    memory = host_memory().free
    return (
        f"python {platform.python_version()}, torch {_torch_version()}, "
        f"{format_bytes(memory)} free memory, {format_bytes(free_disk)} free disk"
    )


def check_model(config: NodeConfig, model: Path) -> None:
    """Raises ModelError, ConfigError for a context over the model's, NodeStartError for what cannot fit."""
    from kvops.models.checkpoint import open_checkpoint

    if config.runtime.device.startswith("cuda") and not may_use_gpu("auto"):
        raise ConfigError(
            f"runtime.device = {config.runtime.device!r}: no GPU with a driver and a torch for it",
            hint="use auto or cpu",
        )
    checkpoint = open_checkpoint(model)
    asked, most = config.model.max_context_length, checkpoint.spec.max_context_length
    if asked is not None and asked > most:
        raise ConfigError(
            f"model.max_context_length = {asked}: the model was trained for {most} tokens",
            hint=f"give at most {most}, or leave it out",
        )
    if not may_use_gpu(config.runtime.device):
        _check_memory(config, checkpoint)


def _check_memory(config: NodeConfig, checkpoint: Checkpoint) -> None:
    """On the CPU, by what is needed at least; the engine counts again, to the byte."""
    spec, plan = checkpoint.spec, pool_plan(config)
    weights_dtype, kv_dtype = config.model.weights_dtype, config.kv_cache.dtype
    if kv_dtype == "auto" and weights_dtype == "float32":
        kv_dtype = "float32"
    needs = Needs(
        weights=checkpoint.parameters * _LEAST_BYTES[weights_dtype],
        activations=_least_activations(config, spec),
        block=spec.kv_bytes_per_token(_LEAST_BYTES[kv_dtype]) * plan.block_size,
        context=config.model.max_context_length,
        known="at least ",
    )
    plan_blocks(plan, needs, host_memory())


def _least_activations(config: NodeConfig, spec: ModelSpec) -> int:
    """Hidden state, q, k, v, gate and up of a full step, and the logits of a full batch, in two bytes."""
    fused = (spec.n_heads + 2 * spec.n_kv_heads) * spec.head_dim
    row = spec.hidden_size + fused + 2 * spec.intermediate_size
    runtime = config.runtime
    return 2 * (runtime.max_batched_tokens * row + runtime.max_batch_size * spec.vocab_size)


def runs_already(name: str) -> NodeStartError:
    """The name is taken; what a second node beside it needs, all at once."""
    taken = {record.name for record in registry.running()} | {name}
    free = next(each for at in range(2, len(taken) + 3) if (each := f"{name}-{at}") not in taken)
    return NodeStartError(
        f"a node named {name!r} runs already",
        hint=f"kvops node stop --node {name}, or start another beside it: "
        f"--name {free} --port 0 --control-port 0",
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

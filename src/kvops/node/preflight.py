"""Whether model and memory allow what is asked, and how large the block pool shall be. Imports no torch.

What can be known from files and settings is refused here, before a port is bound or a process started.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from kvops import registry
from kvops.config.schema import KvCache, NodeConfig
from kvops.errors import ConfigError, NodeStartError
from kvops.machine import Memory, host_memory
from kvops.node.finding import Looked
from kvops.node.pool_size import Needs, plan_blocks
from kvops.node.wire import PoolPlan
from kvops.units import format_bytes

if TYPE_CHECKING:
    from kvops.models.spec import ModelSpec

CPU_POOL_BYTES = 2**30
GPU_POOL_FRACTION = 0.85
_LEAST_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1, "fp8": 1, "auto": 1}
"""Of a number, whatever the device makes of `auto`."""


def check_model(config: NodeConfig, model: Path) -> None:
    """Raises ModelError, and ConfigError for a context over the model's."""
    from kvops.models.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(model)
    asked, most = config.model.max_context_length, checkpoint.spec.max_context_length
    if asked is not None and asked > most:
        raise ConfigError(
            f"model.max_context_length = {asked}: the model was trained for {most} tokens",
            hint=f"give at most {most}, or leave it out",
        )


def check_version(config: NodeConfig, revision: str) -> None:
    """Raises ConfigError where the model's files are not those that are asked for."""
    asked = config.model.version
    if asked is not None and not (revision.startswith(asked) or asked.startswith(revision)):
        raise ConfigError(
            f"model.version = {asked!r}: {config.model.name} is at revision {revision}",
            hint=f"pull that revision again, or write model.version: '{revision}'",
        )


def check_memory(config: NodeConfig, model: Path, memory: Memory | None = None) -> Looked:
    """By what is needed at least; the engine counts again, to the byte. `memory`: of a GPU, else the host's.

    Raises NodeStartError for what cannot fit, ConfigError for a pool that serves nobody.
    """
    from kvops.models.checkpoint import open_checkpoint

    checkpoint, memory = open_checkpoint(model), memory or host_memory()
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
    plan_blocks(plan, needs, memory)
    return Looked("pass", f"{format_bytes(memory.free)} free memory")


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

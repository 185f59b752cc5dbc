"""From a `Start` message to a runner: memory is planned and refused first, weights and pool are loaded after."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from kvops.errors import ConfigError
from kvops.models.checkpoint import Checkpoint, open_checkpoint
from kvops.models.spec import ModelSpec
from kvops.models.tokenizer import load_tokenizer
from kvops.node.engine.attention.base import KvCache
from kvops.node.engine.attention.torch_reference import TorchAttention
from kvops.node.engine.memory import MemoryAccounts, device_memory, plan_blocks
from kvops.node.engine.model.decoder import Decoder
from kvops.node.engine.model.linear import packs
from kvops.node.engine.model.rotary import Rotary
from kvops.node.engine.model.weights import load_weights
from kvops.node.engine.runner import Runner
from kvops.node.engine.sampler import Sampler
from kvops.node.wire import EngineInfo, Start
from kvops.units import format_bytes

Progress = Callable[[str, str], None]
"""Called with a phase and its detail as each step of the start-up is done."""


@dataclass(frozen=True, slots=True)
class Loaded:
    runner: Runner
    info: EngineInfo
    accounts: MemoryAccounts
    """Activations are not measured yet."""


def load(start: Start, progress: Progress) -> Loaded:
    """Raises ConfigError, NodeStartError or a ModelError."""
    began = time.perf_counter()
    torch.set_num_threads(start.threads or len(os.sched_getaffinity(0)))
    device = _device(start.device)
    checkpoint = open_checkpoint(Path(start.model_path))
    spec, dtype = checkpoint.spec, _dtype(start.weights_dtype, device)
    bytes_per_block = spec.kv_bytes_per_token(dtype.itemsize) * start.pool.block_size
    expected = _weight_bytes(checkpoint, dtype, device)
    blocks = plan_blocks(start.pool, bytes_per_block, expected, device_memory(device))
    info = _info(start, checkpoint, dtype, device, blocks, bytes_per_block)

    weights = load_weights(spec, checkpoint.tensors(), dtype, device)
    took = time.perf_counter() - began
    progress(
        "model loaded",
        f"{info.parameters / 1e6:.1f} M parameters, {info.weights_dtype}, {took:.1f} s",
    )

    cache = KvCache.allocate(spec, blocks, start.pool.block_size, dtype, device)
    tokens = blocks * start.pool.block_size
    progress("pool initialised", f"{blocks} blocks, {tokens} tokens, {format_bytes(cache.nbytes)}")

    rotary = Rotary(spec, info.max_model_len, dtype, device)
    runner = Runner(
        Decoder(spec, weights, rotary),
        TorchAttention(cache, spec.sliding_window),
        Sampler(load_tokenizer(Path(start.model_path)).eos_token_ids),
        device,
    )
    return Loaded(runner, info, MemoryAccounts(device, weights.nbytes, cache.nbytes, activations=0))


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(
            f"runtime.device: {name!r} is no device", hint="use auto, cpu or cuda"
        ) from error
    if device.type not in ("cpu", "cuda") or (
        device.type == "cuda" and not torch.cuda.is_available()
    ):
        raise ConfigError(f"runtime.device: {name!r} is not there", hint="use auto or cpu")
    return device


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


def _weight_bytes(checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> int:
    """A packed output matrix cannot double as the embedding, so tied embeddings are then held twice."""
    spec = checkpoint.spec
    twice = spec.tie_embeddings and packs(dtype, device)
    copies = spec.vocab_size * spec.hidden_size if twice else 0
    return (checkpoint.parameters + copies) * dtype.itemsize


def _info(
    start: Start,
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    device: torch.device,
    blocks: int,
    bytes_per_block: int,
) -> EngineInfo:
    name = str(dtype).removeprefix("torch.")
    spec: ModelSpec = checkpoint.spec
    limits = [spec.max_context_length, blocks * start.pool.block_size]
    if start.max_context_length is not None:
        limits.append(start.max_context_length)
    return EngineInfo(
        spec=spec,
        parameters=checkpoint.parameters,
        weights_dtype=name,
        kv_dtype=name,
        device=str(device),
        max_model_len=min(limits),
        pool_blocks=blocks,
        block_size=start.pool.block_size,
        bytes_per_block=bytes_per_block,
    )

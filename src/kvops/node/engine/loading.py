"""From a `Start` message to a runner: memory is planned and refused first, weights and pool are loaded after."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from kvops.errors import ConfigError
from kvops.models.checkpoint import Checkpoint, open_checkpoint
from kvops.models.tokenizer import load_tokenizer
from kvops.node.engine.activations import activation_bytes
from kvops.node.engine.attention.base import KvCache
from kvops.node.engine.attention.torch_reference import TorchAttention
from kvops.node.engine.formats import Formats, block_bytes, torch_dtype, weight_bytes
from kvops.node.engine.memory import MemoryAccounts, device_memory
from kvops.node.engine.model.decoder import Decoder
from kvops.node.engine.model.rotary import Rotary
from kvops.node.engine.model.torch_decoder import TorchDecoder
from kvops.node.engine.model.weights import load_weights
from kvops.node.engine.preference import settle
from kvops.node.engine.reserve import Reserve
from kvops.node.engine.runner import Model, Runner
from kvops.node.engine.sampler import Sampler
from kvops.node.engine.signs import Signs
from kvops.node.engine.threads import compute_threads
from kvops.node.pool_size import Needs, most_blocks, plan_blocks
from kvops.node.wire import EngineInfo, Start
from kvops.units import format_bytes

Progress = Callable[[str, str], None]
"""Called with a phase and its detail as each step of the start-up is done; without a detail: a part of it is."""


@dataclass(frozen=True, slots=True)
class Loaded:
    runner: Runner
    info: EngineInfo
    accounts: MemoryAccounts
    """Activations are not measured yet."""


def load(start: Start, progress: Progress, reserve: Reserve | None = None) -> Loaded:
    """Raises ConfigError, NodeStartError or a ModelError."""
    threads = compute_threads(start.threads)
    torch.set_num_threads(threads)
    device = device_of(start.device)
    reading = Signs(progress, "reading weights")
    checkpoint = replace(open_checkpoint(Path(start.model_path)), on_read=reading)
    formats = settle(start, checkpoint.spec, device)
    needs, blocks = _plan(start, checkpoint, formats, device, threads)
    info = _info(start, checkpoint, formats, device, needs.block, blocks)
    match formats.kernels:
        case "cpu":
            model, accounts = _compiled(
                start, checkpoint, formats, info, threads, progress, reserve
            )
        case "cuda":
            model, info, accounts = _on_cuda(start, checkpoint, formats, info, progress)
        case "none":
            model, accounts = _torch(checkpoint, formats, info, device, progress)
    eos = load_tokenizer(Path(start.model_path)).eos_token_ids
    return Loaded(Runner(model, Sampler(eos)), info, accounts)


def _plan(
    start: Start, checkpoint: Checkpoint, formats: Formats, device: torch.device, threads: int
) -> tuple[Needs, int]:
    """The three accounts, and the blocks of the pool."""
    spec, plan, memory = checkpoint.spec, start.pool, device_memory(device)
    weights = weight_bytes(checkpoint, formats, device)
    block = block_bytes(spec, formats, plan.block_size)
    held = most_blocks(plan, weights, block, memory) * plan.block_size
    asked = start.max_context_length
    context = min(spec.max_context_length, held, asked or held)
    activations = activation_bytes(start, spec, formats, context, threads)
    needs = Needs(weights, activations, block, asked)
    return needs, plan_blocks(plan, needs, memory)


def _compiled(
    start: Start,
    checkpoint: Checkpoint,
    formats: Formats,
    info: EngineInfo,
    threads: int,
    progress: Progress,
    reserve: Reserve | None,
) -> tuple[Model, MemoryAccounts]:
    # Imported here: the compiler is only there for CPUs, and takes a while.
    from kvops.node.engine.cpu import decoder
    from kvops.node.engine.cpu.packing import Packer
    from kvops.node.engine.cpu.team import Team

    began = time.perf_counter()
    shape = decoder.shape_of(info.spec, info.pool_blocks, info.block_size)
    assert formats.kv != "fp8"  # `choose` refused it
    with ThreadPoolExecutor(1) as beside:
        # A system may take seconds to hand out a gigabyte; the weights take as long to read.
        filling = beside.submit(decoder.allocate_pool, shape, formats.kv, reserve)
        weights = Packer(info.spec, formats.weights, info.max_model_len).pack(checkpoint.tensors())
        progress("model loaded", _loaded(info, formats, time.perf_counter() - began))
        pool = filling.result()
    model = decoder.CompiledDecoder(
        shape, weights, pool, Team(threads), start.max_batched_tokens, start.max_batch_size
    )
    progress("pool initialised", _pool(info, formats, model.pool_bytes))
    began = time.perf_counter()
    source = "kept from before" if model.compile() else "now kept for the next start"
    took = time.perf_counter() - began
    progress("kernels compiled", f"{threads} threads, {source}, {took:.1f} s")
    buffers = model.buffer_bytes
    accounts = MemoryAccounts(
        torch.device("cpu"), model.weight_bytes, model.pool_bytes, buffers, buffers
    )
    return model, accounts


def _on_cuda(
    start: Start, checkpoint: Checkpoint, formats: Formats, planned: EngineInfo, progress: Progress
) -> tuple[Model, EngineInfo, MemoryAccounts]:
    """With the pool that the measured step leaves room for."""
    # Imported here: Triton is only there for GPUs.
    from kvops.node.engine.cuda.build import build

    device = torch.device(planned.device)
    describe = partial(_info, start, checkpoint, formats, device, planned.bytes_per_block)
    return build(start, checkpoint, formats, planned, describe, progress)


def _torch(
    checkpoint: Checkpoint,
    formats: Formats,
    info: EngineInfo,
    device: torch.device,
    progress: Progress,
) -> tuple[Model, MemoryAccounts]:
    began = time.perf_counter()
    spec, dtype = info.spec, torch_dtype(formats.weights)
    weights = load_weights(spec, checkpoint.tensors(), dtype, device)
    progress("model loaded", _loaded(info, formats, time.perf_counter() - began))
    cache = KvCache.allocate(spec, info.pool_blocks, info.block_size, dtype, device)
    progress("pool initialised", _pool(info, formats, cache.nbytes))
    model = TorchDecoder(
        Decoder(spec, weights, Rotary(spec, info.max_model_len, dtype, device)),
        TorchAttention(cache, spec.sliding_window),
        device,
    )
    return model, MemoryAccounts(device, weights.nbytes, cache.nbytes, activations=0)


def _loaded(info: EngineInfo, formats: Formats, seconds: float) -> str:
    reason = f" ({formats.reason})" if formats.reason else ""
    return f"{info.parameters / 1e6:.1f} M parameters, {formats.weights}{reason}, {seconds:.1f} s"


def _pool(info: EngineInfo, formats: Formats, size: int) -> str:
    tokens = info.pool_blocks * info.block_size
    return f"{info.pool_blocks} blocks, {tokens} tokens, {formats.kv}, {format_bytes(size)}"


def device_of(name: str) -> torch.device:
    """Raises ConfigError for one that is not there."""
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


def _info(
    start: Start,
    checkpoint: Checkpoint,
    formats: Formats,
    device: torch.device,
    bytes_per_block: int,
    blocks: int,
) -> EngineInfo:
    limits = [checkpoint.spec.max_context_length, blocks * start.pool.block_size]
    if start.max_context_length is not None:
        limits.append(start.max_context_length)
    return EngineInfo(
        spec=checkpoint.spec,
        parameters=checkpoint.parameters,
        weights_dtype=formats.weights,
        kv_dtype=formats.kv,
        device=str(device),
        max_model_len=min(limits),
        pool_blocks=blocks,
        block_size=start.pool.block_size,
        bytes_per_block=bytes_per_block,
    )

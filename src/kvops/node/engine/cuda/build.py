"""From a checkpoint to a model on a GPU: weights, then the largest step is measured, then pool and graphs.

Nothing here runs on a CPU; the parts do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kvops.models.checkpoint import Checkpoint
from kvops.node.engine.cuda.attention import TritonAttention
from kvops.node.engine.cuda.graphs import (
    DecodeGraphs,
    GraphedDecoder,
    Rung,
    cuda_graphs,
    ladder,
)
from kvops.node.engine.cuda.pool import Pool
from kvops.node.engine.cuda.rounded import load_rounded
from kvops.node.engine.cuda.sizing import GRAPH_BYTES, blocks_beside, largest_batch, measure
from kvops.node.engine.formats import Formats, torch_dtype
from kvops.node.engine.memory import MemoryAccounts, peak_of
from kvops.node.engine.model.decoder import Decoder
from kvops.node.engine.model.rotary import Rotary
from kvops.node.engine.model.torch_decoder import TorchDecoder
from kvops.node.engine.model.weights import DecoderWeights, load_weights
from kvops.node.engine.runner import Model, Runner
from kvops.node.engine.sampler import Sampler
from kvops.node.pool_size import Needs
from kvops.node.wire import EngineInfo, Start
from kvops.units import format_bytes

Progress = Callable[[str, str], None]
Describe = Callable[[int], EngineInfo]
"""What a pool of so many blocks makes of the engine."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """What is the same for every pool."""

    start: Start
    formats: Formats
    decoder: Decoder
    device: torch.device

    @property
    def dtype(self) -> torch.dtype:
        return computed_in(self.formats)

    def pool(self, info: EngineInfo, blocks: int) -> Pool:
        return Pool.allocate(info.spec, blocks, info.block_size, self.formats.kv, self.device)

    def attention(self, info: EngineInfo, pool: Pool) -> TritonAttention:
        spec = info.spec
        return TritonAttention(pool, spec.n_heads, spec.sliding_window, self.dtype)

    def eager(self, attention: TritonAttention) -> TorchDecoder:
        return TorchDecoder(self.decoder, attention, self.device)

    def rungs(self, info: EngineInfo, pool: Pool, sizes: list[int]) -> list[Rung]:
        width = -(-info.max_model_len // info.block_size)
        return [
            Rung(size, width, info.block_size, pool.scratch_block, self.device) for size in sizes
        ]

    def hidden(self, attention: TritonAttention, rung: Rung) -> Tensor:
        step = attention.step(rung.inputs)
        return self.decoder.forward(rung.token_ids, rung.positions, step)


def build(
    start: Start,
    checkpoint: Checkpoint,
    formats: Formats,
    planned: EngineInfo,
    describe: Describe,
    progress: Progress,
) -> tuple[Model, EngineInfo, MemoryAccounts]:
    """`planned`: as was expected before anything was loaded. Raises ConfigError or NodeStartError."""
    device = torch.device(planned.device)
    if device.index is not None:
        torch.cuda.set_device(device)  # kernels and graphs go to the current one
    began, before = time.perf_counter(), torch.cuda.memory_allocated(device)
    weights = load(checkpoint, formats, device)
    dtype = computed_in(formats)
    longest = start.max_context_length or checkpoint.spec.max_context_length
    rotary = Rotary(
        checkpoint.spec, min(longest, checkpoint.spec.max_context_length), dtype, device
    )
    parts = _Parts(start, formats, Decoder(checkpoint.spec, weights, rotary), device)
    held = torch.cuda.memory_allocated(device) - before
    progress("model loaded", _loaded(planned, formats, held, time.perf_counter() - began))
    activations, aside = _measure(parts, planned)
    progress("largest step measured", format_bytes(activations))
    needs = Needs(held, activations + aside, planned.bytes_per_block, start.max_context_length)
    info = describe(blocks_beside(start, needs, device))
    pool = parts.pool(info, info.pool_blocks)
    tokens = info.pool_blocks * info.block_size
    progress("pool initialised", f"{info.pool_blocks} blocks, {tokens} tokens, {formats.kv}")
    model, kept = _graphed(parts, info, pool, progress)
    accounts = MemoryAccounts(device, held, pool.nbytes, activations + kept, kept)
    return model, info, accounts


def _loaded(planned: EngineInfo, formats: Formats, held: int, seconds: float) -> str:
    reason = f" ({formats.reason})" if formats.reason else ""
    size = f"{planned.parameters / 1e6:.1f} M parameters, {formats.weights}{reason}"
    return f"{size}, {format_bytes(held)}, {seconds:.1f} s"


def computed_in(formats: Formats) -> torch.dtype:
    """int8 weights are multiplied with bfloat16 activations."""
    return torch.bfloat16 if formats.weights == "int8" else torch_dtype(formats.weights)


def load(checkpoint: Checkpoint, formats: Formats, device: torch.device) -> DecoderWeights:
    if formats.weights == "int8":
        return load_rounded(checkpoint.spec, checkpoint.tensors(), device)
    dtype = torch_dtype(formats.weights)
    return load_weights(checkpoint.spec, checkpoint.tensors(), dtype, device)


def _measure(parts: _Parts, planned: EngineInfo) -> tuple[int, int]:
    """Bytes of the largest step, and to set aside for graphs."""
    pool = parts.pool(planned, 0)
    attention = parts.attention(planned, pool)
    runner = Runner(parts.eager(attention), Sampler(()))
    batch = largest_batch(parts.start, pool.scratch_block, planned.max_model_len)
    activations = measure(runner, batch, parts.device)
    sizes = ladder(parts.start.max_batch_size)
    (rung,) = parts.rungs(planned, pool, sizes[-1:])
    with torch.inference_mode():
        decode = peak_of(parts.device, lambda: _discard(parts.hidden(attention, rung)))
    return activations, decode + GRAPH_BYTES * len(sizes)


def _discard(_: Tensor) -> None:
    """Only the way to it counts."""


def _graphed(parts: _Parts, info: EngineInfo, pool: Pool, progress: Progress) -> tuple[Model, int]:
    """The model, and the bytes that its graphs keep."""
    began, before = time.perf_counter(), torch.cuda.memory_reserved(parts.device)
    attention = parts.attention(info, pool)
    rungs = parts.rungs(info, pool, ladder(parts.start.max_batch_size))
    graphs = DecodeGraphs(lambda rung: parts.hidden(attention, rung), rungs, cuda_graphs())
    kept = torch.cuda.memory_reserved(parts.device) - before
    took = time.perf_counter() - began
    progress("decode graphs captured", f"{len(rungs)}, {format_bytes(kept)}, {took:.1f} s")
    return GraphedDecoder(parts.decoder, parts.eager(attention), graphs), kept

"""Which numbers weights and KV are kept in, and whether kernels or torch compute: decided before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from kvops.errors import ConfigError
from kvops.models.checkpoint import Checkpoint
from kvops.models.spec import ModelSpec
from kvops.node.engine.model.linear import packs
from kvops.node.pool_size import fp8_on_a_cpu
from kvops.node.wire import KvDtype, Start

Format = Literal["float32", "bfloat16", "int8"]
KvFormat = Literal["float32", "bfloat16", "int8", "fp8"]
Kernels = Literal["cpu", "cuda", "none"]


@dataclass(frozen=True, slots=True)
class Formats:
    weights: Format
    kv: KvFormat
    kernels: Kernels
    """cpu: the whole step in one; cuda: attention and int8 weights, the rest in torch; none: all in torch."""
    reason: str
    """Why, where `auto` chose; empty where it was asked for."""

    @property
    def compiled(self) -> bool:
        """The whole step by CPU kernels; else torch, one operation at a time."""
        return self.kernels == "cpu"


def choose(start: Start, spec: ModelSpec, device: torch.device) -> Formats:
    """Raises ConfigError for a combination that nothing here computes."""
    if device.type == "cuda":
        return _on_cuda(start, device)
    if start.pool.dtype == "fp8":
        raise fp8_on_a_cpu()
    compiled = _compiles(spec)
    weights, reason = _weights(start.weights_dtype, device, compiled)
    kv = _kv(start.pool.dtype, weights)
    if not compiled and ("int8" in (weights, kv) or kv != weights):
        raise ConfigError(
            f"model.weights_dtype {weights} with kv_cache.dtype {kv} needs the CPU kernels, "
            f"which do not serve this model on this {device.type}",
            hint="set both to float32 or both to bfloat16",
        )
    return Formats(weights, kv, "cpu" if compiled else "none", reason)


def _on_cuda(start: Start, device: torch.device) -> Formats:
    from kvops.node.engine.cuda.support import require

    weights, reason = _weights(start.weights_dtype, device, compiled=False)
    kv = _kv(start.pool.dtype, weights)
    require(kv, device)
    return Formats(weights, kv, "cuda", reason)


def _compiles(spec: ModelSpec) -> bool:
    # Imported here: a GPU node shall not pay for the compiler.
    from kvops.node.engine.cpu.decoder import serves

    return serves(spec)


def _weights(asked: str, device: torch.device, compiled: bool) -> tuple[Format, str]:
    match asked:
        case "float32" | "bfloat16" | "int8":
            return asked, ""
    if device.type == "cuda":
        return "bfloat16", "auto on a GPU"
    if compiled:
        return "int8", "auto: a quarter of float32's memory traffic"
    return "float32", "auto: no kernels for this model on this CPU"


def _kv(asked: KvDtype, weights: Format) -> KvFormat:
    """`auto` keeps 16 bits beside rounded weights, which costs less than they do, and is exact beside exact ones."""
    if asked != "auto":
        return asked
    return "float32" if weights == "float32" else "bfloat16"


def weight_bytes(checkpoint: Checkpoint, formats: Formats, device: torch.device) -> int:
    """What the finished weights will take."""
    spec = checkpoint.spec
    if formats.compiled:
        from kvops.node.engine.cpu.packing import packed_bytes

        return packed_bytes(spec, formats.weights)
    if formats.weights == "int8":
        from kvops.node.engine.cuda.rounded import rounded_bytes

        return rounded_bytes(spec)
    # A packed output matrix cannot double as the embedding, so tied embeddings are then held twice.
    dtype = torch_dtype(formats.weights)
    twice = spec.tie_embeddings and packs(dtype, device)
    copies = spec.vocab_size * spec.hidden_size if twice else 0
    return (checkpoint.parameters + copies) * dtype.itemsize


def block_bytes(spec: ModelSpec, formats: Formats, block_size: int) -> int:
    """Keys and values of one block, all layers, scales included."""
    if formats.compiled:
        from kvops.node.engine.cpu import decoder

        assert formats.kv != "fp8"  # `choose` refused it
        return decoder.block_bytes(spec, block_size, formats.kv)
    if formats.kernels == "cuda":
        from kvops.node.engine.cuda import pool

        return pool.block_bytes(spec, block_size, formats.kv)
    assert formats.kv == formats.weights  # likewise
    return spec.kv_bytes_per_token(torch_dtype(formats.weights).itemsize) * block_size


def torch_dtype(name: Format) -> torch.dtype:
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}[name]

"""A checkpoint's tensors in the shape the decoder wants: q, k, v in one matrix, gate and up in one.

The checkpoint has already been checked to hold exactly its spec's tensors, and yields each layer's together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from itertools import groupby
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvops.models.spec import ModelSpec
from kvops.node.engine.model.linear import Linear, linear

Part = TypeVar("Part")
NamedArrays = Iterable[tuple[str, NDArray[np.float32]]]
Make = Callable[[Tensor, Tensor | None], Linear]
"""From a weight `[out, in]`, and a bias if there is one, to their product."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    attention_norm: Tensor
    qkv: Linear
    head_norm: Tensor | None
    """[heads + kv_heads, head_dim]: RMS norm weights of each q and k head (Qwen3)."""
    output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear

    @property
    def nbytes(self) -> int:
        parts = [getattr(self, field.name) for field in fields(self)]
        return sum(part.nbytes for part in parts if part is not None)


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    lm_head: Linear

    @property
    def nbytes(self) -> int:
        outer = self.embedding.nbytes + self.norm.nbytes + self.lm_head.nbytes
        return outer + sum(layer.nbytes for layer in self.layers)


def load_weights(
    spec: ModelSpec,
    arrays: NamedArrays,
    dtype: torch.dtype,
    device: torch.device,
    make: Make = linear,
) -> DecoderWeights:
    """Read one layer at a time: the peak is the finished weights and one layer in float32."""
    outer: dict[str, Tensor] = {}
    layers: list[LayerWeights] = []
    tensors = ((name, torch.tensor(array, dtype=dtype, device=device)) for name, array in arrays)
    for layer, group in groupby(tensors, key=layer_index):
        if layer is None:
            outer |= group
        else:
            layers.append(_fuse(spec, local_names(group), make))
    embedding = outer["model.embed_tokens.weight"]
    head = embedding if spec.tie_embeddings else outer["lm_head.weight"]
    return DecoderWeights(embedding, tuple(layers), outer["model.norm.weight"], make(head, None))


def layer_index(named: tuple[str, object]) -> int | None:
    """5 of `model.layers.5.mlp.up_proj.weight`; None outside the layers."""
    parts = named[0].split(".")
    return int(parts[2]) if parts[1] == "layers" else None


def local_names(group: Iterator[tuple[str, Part]]) -> dict[str, Part]:
    """Names within their layer: `mlp.up_proj.weight`."""
    return {name.split(".", 3)[3]: tensor for name, tensor in group}


def _fuse(spec: ModelSpec, parts: dict[str, Tensor], make: Make) -> LayerWeights:
    projections = [f"self_attn.{part}_proj" for part in "qkv"]
    bias = (
        torch.cat([parts[f"{name}.bias"] for name in projections]) if spec.attention_bias else None
    )
    return LayerWeights(
        attention_norm=parts["input_layernorm.weight"],
        qkv=make(torch.cat([parts[f"{name}.weight"] for name in projections]), bias),
        head_norm=_head_norm(spec, parts) if spec.qk_norm else None,
        output=make(parts["self_attn.o_proj.weight"], None),
        mlp_norm=parts["post_attention_layernorm.weight"],
        gate_up=make(torch.cat([parts["mlp.gate_proj.weight"], parts["mlp.up_proj.weight"]]), None),
        down=make(parts["mlp.down_proj.weight"], None),
    )


def _head_norm(spec: ModelSpec, parts: dict[str, Tensor]) -> Tensor:
    queries = parts["self_attn.q_norm.weight"].expand(spec.n_heads, -1)
    keys = parts["self_attn.k_norm.weight"].expand(spec.n_kv_heads, -1)
    return torch.cat((queries, keys))

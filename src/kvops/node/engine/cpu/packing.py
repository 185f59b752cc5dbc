"""Checkpoint tensors into the one array that kernels read, a matrix at a time: the peak is that and one layer.

A matrix `[out, in]` becomes tiles of COLUMNS outputs: `[tiles, in, COLUMNS]`, or `[tiles, in / 2, COLUMNS, 2]` in int8
with a scale for each output and group of inputs, `[tiles, groups, COLUMNS]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from kvops.models.spec import ModelSpec
from kvops.node.engine.cpu.compiler import COLUMNS
from kvops.node.engine.cpu.layout import Weights, group_of, groups_of, padded
from kvops.node.engine.model.rotary import angles
from kvops.node.engine.model.weights import NamedArrays, layer_index, local_names

WeightsFormat = Literal["float32", "bfloat16", "int8"]

_STORED: dict[WeightsFormat, type[np.generic]] = {
    "float32": np.float32,
    "bfloat16": np.uint16,
    "int8": np.int8,
}


def shapes(spec: ModelSpec) -> list[tuple[int, int]]:
    """(out, in) of every packed matrix in order: qkv, output, gate_up, down of each layer, embedding, lm_head."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    heads, kv_heads, size = spec.n_heads, spec.n_kv_heads, spec.head_dim
    layer = [
        ((heads + 2 * kv_heads) * size, hidden),
        (hidden, heads * size),
        (2 * inner, hidden),
        (hidden, inner),
    ]
    outer = [(spec.vocab_size, hidden)] * (1 if spec.tie_embeddings else 2)
    return layer * spec.n_layers + outer


def packed_bytes(spec: ModelSpec, kind: WeightsFormat) -> int:
    """What the finished weights take, scales, norms and rotation tables aside from the last included."""
    matrices = sum(padded(out) * depth for out, depth in shapes(spec))
    scales = sum(padded(out) * groups_of(depth) for out, depth in shapes(spec))
    norms = (2 * spec.n_layers + 1) * spec.hidden_size
    extra = 4 * (scales if kind == "int8" else 0) + 4 * norms
    return matrices * np.dtype(_STORED[kind]).itemsize + extra


class Packer:
    def __init__(self, spec: ModelSpec, kind: WeightsFormat, positions: int) -> None:
        self._spec, self._kind = spec, kind
        sizes = [padded(out) * depth for out, depth in shapes(spec)]
        scales = [padded(out) * groups_of(depth) for out, depth in shapes(spec)]
        hidden, layers = spec.hidden_size, spec.n_layers
        cos, sin = angles(spec, positions)
        self._weights = Weights(
            data=np.empty(sum(sizes), _STORED[kind]),
            scales=np.empty(sum(scales) if kind == "int8" else 0, np.float32),
            data_at=_starts(sizes, spec.tie_embeddings),
            scales_at=_starts(scales, spec.tie_embeddings),
            norms=np.empty((2 * layers + 1) * hidden, np.float32),
            bias=np.zeros(layers * padded(shapes(spec)[0][0]) * spec.attention_bias, np.float32),
            head_norms=np.empty(layers * 2 * spec.head_dim * spec.qk_norm, np.float32),
            cos=cos.numpy().ravel(),
            sin=sin.numpy().ravel(),
        )

    def pack(self, arrays: NamedArrays) -> Weights:
        for layer, group in groupby(arrays, key=layer_index):
            if layer is None:
                self._outer(dict(group))
            else:
                self._layer(layer, local_names(group))
        return self._weights

    def _outer(self, arrays: dict[str, NDArray[np.float32]]) -> None:
        layers, hidden = self._spec.n_layers, self._spec.hidden_size
        for name, array in arrays.items():
            if name == "model.norm.weight":
                self._weights.norms[2 * layers * hidden :] = array
            elif name == "model.embed_tokens.weight":
                self._matrix(4 * layers, [array])
            elif not self._spec.tie_embeddings:
                self._matrix(4 * layers + 1, [array])

    def _layer(self, layer: int, parts: dict[str, NDArray[np.float32]]) -> None:
        def weights(*names: str) -> list[NDArray[np.float32]]:
            return [parts[f"{name}.weight"] for name in names]

        queries = [f"self_attn.{part}_proj" for part in "qkv"]
        self._matrix(4 * layer, weights(*queries))
        self._matrix(4 * layer + 1, weights("self_attn.o_proj"))
        self._matrix(4 * layer + 2, weights("mlp.gate_proj", "mlp.up_proj"))
        self._matrix(4 * layer + 3, weights("mlp.down_proj"))
        norms = weights("input_layernorm", "post_attention_layernorm")
        _put(self._weights.norms, 2 * layer, norms)
        if self._spec.attention_bias:
            bias = np.concatenate([parts[f"{name}.bias"] for name in queries])
            width = padded(len(bias))
            self._weights.bias[layer * width : layer * width + len(bias)] = bias
        if self._spec.qk_norm:
            _put(
                self._weights.head_norms, 2 * layer, weights("self_attn.q_norm", "self_attn.k_norm")
            )

    def _matrix(self, index: int, parts: list[NDArray[np.float32]]) -> None:
        matrix = _side_by_side([torch.from_numpy(np.asarray(part, np.float32)) for part in parts])
        rows, depth = matrix.shape
        if rows < padded(rows):
            matrix = functional.pad(matrix, (0, 0, 0, padded(rows) - rows))
        start = int(self._weights.data_at[index])
        target = self._weights.data[start : start + matrix.numel()]
        _PACK[self._kind](matrix, target, self._scales(index, len(matrix), depth))

    def _scales(self, index: int, rows: int, depth: int) -> NDArray[np.float32]:
        start = int(self._weights.scales_at[index])
        return self._weights.scales[start : start + rows * groups_of(depth)]


def _pack_float32(matrix: Tensor, target: NDArray[np.generic], _: NDArray[np.float32]) -> None:
    tiles = matrix.view(-1, COLUMNS, matrix.shape[1]).transpose(1, 2)
    torch.from_numpy(target).view(tiles.shape).copy_(tiles)


def _pack_bfloat16(matrix: Tensor, target: NDArray[np.generic], _: NDArray[np.float32]) -> None:
    tiles = matrix.view(-1, COLUMNS, matrix.shape[1]).transpose(1, 2).bfloat16()
    torch.from_numpy(target.view(np.int16)).view(tiles.shape).copy_(tiles.view(torch.int16))


def _pack_int8(matrix: Tensor, target: NDArray[np.generic], scales: NDArray[np.float32]) -> None:
    """Symmetric, to nearest: the largest magnitude of a group becomes 127."""
    depth = matrix.shape[1]
    groups = [matrix[:, at : at + group_of(depth)] for at in range(0, depth, group_of(depth))]
    largest = [_magnitude(group) for group in groups]
    small = [_rounded(group, most) for group, most in zip(groups, largest, strict=True)]
    # Two of the depth stay together, so they move as one number of 16 bits.
    pairs = _side_by_side(small, 1).view(torch.int16).view(-1, COLUMNS, depth // 2)
    tiles = pairs.transpose(1, 2)
    torch.from_numpy(target.view(np.int16)).view(tiles.shape).copy_(tiles)
    each = (torch.cat(largest, 1) / 127).view(-1, COLUMNS, len(groups)).transpose(1, 2)
    torch.from_numpy(scales).view(each.shape).copy_(each)


def _magnitude(group: Tensor) -> Tensor:
    return group.abs().amax(dim=1, keepdim=True).clamp(min=1e-20)


def _rounded(group: Tensor, largest: Tensor) -> Tensor:
    return group.mul(127 / largest).round_().to(torch.int8)


def _side_by_side(parts: list[Tensor], dim: int = 0) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


_PACK: dict[WeightsFormat, Callable[..., None]] = {
    "float32": _pack_float32,
    "bfloat16": _pack_bfloat16,
    "int8": _pack_int8,
}


def _starts(sizes: list[int], tied: bool) -> NDArray[np.int64]:
    ends = np.cumsum(sizes)
    starts = np.concatenate([[0], ends[:-1]])
    return np.append(starts, starts[-1]) if tied else starts


def _put(target: NDArray[np.float32], row: int, arrays: Iterable[NDArray[np.float32]]) -> None:
    flat = np.concatenate(list(arrays))
    width = len(flat) // 2
    target[row * width : row * width + len(flat)] = flat

"""int8 weights on a GPU: a matrix product that reads half the bytes of bfloat16. Activations are not rounded."""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
from torch import Tensor

from kvops.models.spec import ModelSpec
from kvops.node.engine.cuda.attention import TRITON_TYPES, computable
from kvops.node.engine.cuda.linear_kernel import multiply
from kvops.node.engine.model.weights import DecoderWeights, NamedArrays, load_weights

_FEW, _MANY = 16, 64
"""Rows of a tile of the output: the smallest there are for decodes, more for prompts."""
_COLUMNS = 64
_TILE = 64


class RoundedLinear:
    """Symmetric, to nearest: the largest magnitude of an output's weights becomes 127."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """`weight`: [out, in], of any float type."""
        exact = weight.float()
        self.scales = exact.abs().amax(dim=1).clamp(min=1e-20) / 127
        self.weight = (exact / self.scales[:, None]).round_().to(torch.int8)
        self._bias = bias
        tensors = (self.weight, self.scales, bias)
        self.nbytes = sum(tensor.nbytes for tensor in tensors if tensor is not None)

    def __call__(self, rows: Tensor) -> Tensor:
        out_features, depth = self.weight.shape
        count = len(rows)
        out = torch.empty(count, out_features, dtype=rows.dtype, device=rows.device)
        size = _FEW if count <= _FEW else _MANY
        multiply[(triton.cdiv(out_features, _COLUMNS), triton.cdiv(count, size))](
            rows,
            self.weight,
            self.scales,
            self.scales if self._bias is None else self._bias,
            out,
            count,
            rows.stride(0),
            OUT=out_features,
            DEPTH=depth,
            ROWS=size,
            COLUMNS=_COLUMNS,
            TILE=_TILE,
            HAS_BIAS=self._bias is not None,
            DOT=TRITON_TYPES[computable(rows.dtype)],
            num_warps=4,
            num_stages=3,
        )
        return out


def load_rounded(spec: ModelSpec, arrays: NamedArrays, device: torch.device) -> DecoderWeights:
    """Matrices rounded from their exact values; embedding and norms in bfloat16, as what is computed."""
    exact = load_weights(spec, arrays, torch.float32, device, RoundedLinear)
    layers = [
        replace(
            layer,
            attention_norm=layer.attention_norm.bfloat16(),
            mlp_norm=layer.mlp_norm.bfloat16(),
            head_norm=None if layer.head_norm is None else layer.head_norm.bfloat16(),
        )
        for layer in exact.layers
    ]
    return DecoderWeights(
        exact.embedding.bfloat16(), tuple(layers), exact.norm.bfloat16(), exact.lm_head
    )


def rounded_bytes(spec: ModelSpec) -> int:
    """What the finished weights take: int8 matrices, float32 scales and biases, the rest in bfloat16."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    attended, kept = spec.n_heads * spec.head_dim, spec.n_kv_heads * spec.head_dim
    fused = attended + 2 * kept
    matrices = [(fused, hidden), (hidden, attended), (2 * inner, hidden), (hidden, inner)]
    layer = sum(out * (depth + 4) for out, depth in matrices) + 4 * fused * spec.attention_bias
    heads = (spec.n_heads + spec.n_kv_heads) * spec.head_dim if spec.qk_norm else 0
    norms = spec.n_layers * (2 * hidden + heads) + hidden
    vocabulary = spec.vocab_size * (hidden + 4) + 2 * spec.vocab_size * hidden
    return spec.n_layers * layer + vocabulary + 2 * norms

"""Rotary position embedding in HF's half-split form, with the linear and Llama-3 frequency scalings."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kvops.models.spec import ModelSpec, RopeScaling


class Rotary:
    """Tables of `[positions, 1, head_dim]`; the sign of the half rotation is folded into the sine."""

    def __init__(
        self, spec: ModelSpec, positions: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        cos, sin = angles(spec, positions)
        self._cos = torch.cat((cos, cos), -1).unsqueeze(1).to(device, dtype)
        self._sin = torch.cat((-sin, sin), -1).unsqueeze(1).to(device, dtype)
        self._half = spec.head_dim // 2

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine rows of `[T]` positions: once a step, not once a layer."""
        return self._cos[positions], self._sin[positions]

    def rotate(self, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[T, heads, head_dim], rotated."""
        return torch.addcmul(heads * cos, heads.roll(self._half, -1), sin)


def angles(spec: ModelSpec, positions: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines, `[positions, head_dim / 2]` each, float32."""
    turned = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies(spec))
    return turned.cos(), turned.sin()


def frequencies(spec: ModelSpec) -> Tensor:
    """[head_dim / 2] radians a position: theta^(-2i/d) (RoFormer, arXiv:2104.09864), then scaled."""
    exponents = torch.arange(0, spec.head_dim, 2, dtype=torch.int64).float() / spec.head_dim
    inverse = 1.0 / (spec.rope_theta**exponents)
    scaling = spec.rope_scaling
    if scaling is None:
        return inverse
    if scaling.kind == "linear":
        return inverse / scaling.factor
    return _llama3(inverse, scaling)


def _llama3(inverse: Tensor, scaling: RopeScaling) -> Tensor:
    """Long waves divided by the factor, short ones kept, a linear blend between (Llama 3.1, HF `rope_type: llama3`)."""
    turns = scaling.original_max_position * inverse / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    kept = ((turns - scaling.low_freq_factor) / span).clamp(0, 1)
    return inverse * (kept + (1 - kept) / scaling.factor)

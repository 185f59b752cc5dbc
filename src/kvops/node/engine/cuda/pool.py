"""How keys and values lie in GPU memory, in each format.

Layout: `[layers, blocks, kv_heads, block_size, head_dim]`, and scales without the last axis. A slot is
`block * block_size + offset`. Invariant: one block more than the block pool knows of is there; padding writes to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kvops.models.spec import ModelSpec

KvFormat = Literal["float32", "float16", "bfloat16", "int8", "fp8"]

STORED: dict[KvFormat, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
}
FP8_MAX = 448.0
"""Largest finite e4m3 number (OCP 8-bit floating point specification, table 2). Larger ones are cut to it."""
_SCRATCH = 1


@dataclass(frozen=True, slots=True)
class Pool:
    keys: Tensor
    values: Tensor
    key_scales: Tensor | None = None
    """Of int8: float32 `[layers, blocks, kv_heads, block_size]`, a number is `stored * scale`. fp8 has none."""
    value_scales: Tensor | None = None

    @classmethod
    def allocate(
        cls, spec: ModelSpec, blocks: int, block_size: int, kind: KvFormat, device: torch.device
    ) -> Pool:
        """Zeros for `blocks` blocks and the scratch block behind them."""
        shape = (spec.n_layers, blocks + _SCRATCH, spec.n_kv_heads, block_size)

        def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        numbers = [zeros((*shape, spec.head_dim), STORED[kind]) for _ in range(2)]
        scales = [zeros(shape, torch.float32) for _ in range(2)] if kind == "int8" else []
        return cls(*numbers, *scales)

    @property
    def block_size(self) -> int:
        return self.keys.shape[3]

    @property
    def scratch_block(self) -> int:
        return self.keys.shape[1] - 1

    @property
    def nbytes(self) -> int:
        tensors = (self.keys, self.values, self.key_scales, self.value_scales)
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def block_bytes(spec: ModelSpec, block_size: int, kind: KvFormat) -> int:
    """Keys, values and their scales of one block, all layers."""
    scale = torch.float32.itemsize if kind == "int8" else 0
    each = spec.head_dim * STORED[kind].itemsize + scale
    return 2 * spec.n_layers * spec.n_kv_heads * block_size * each

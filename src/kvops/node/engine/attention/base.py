"""What a decoder asks of attention over the paged pool, and how the pool lies in memory.

Pool layout: keys and values are `[layers, blocks, kv_heads, block_size, head_dim]` each, so that a kernel walks
a block table without a copy. A slot is `block * block_size + offset`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kvops.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class KvCache:
    keys: Tensor
    values: Tensor

    @classmethod
    def allocate(
        cls, spec: ModelSpec, blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> KvCache:
        """Zeros, so that every page is really there before the first request counts on it."""
        shape = (spec.n_layers, blocks, spec.n_kv_heads, block_size, spec.head_dim)
        keys, values = (torch.empty(shape, dtype=dtype, device=device).fill_(0) for _ in range(2))
        return cls(keys, values)

    @property
    def block_size(self) -> int:
        return self.keys.shape[3]

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """Where the flattened tokens of one step lie: R requests, T tokens, requests one after the other."""

    query_lengths: list[int]
    """[R] tokens of each request in this step; their sum is T."""
    context_lengths: list[int]
    """[R] tokens of each request in the pool once this step's are stored."""
    block_tables: list[list[int]]
    """[R] block ids, at least enough for the context."""


class AttentionStep(Protocol):
    """One step, its index tensors made; the same for every layer."""

    def store(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Put `[T, kv_heads, head_dim]` keys and values into the pool."""

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        """`[T, heads, head_dim]` queries over their requests' stored context; the same shape back."""


class Attention(Protocol):
    def begin(self, batch: PagedBatch) -> AttentionStep: ...

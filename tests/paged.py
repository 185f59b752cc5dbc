"""Steps over a paged pool of one layer: random block tables, queries, keys and values, and what the oracle says.

Needs Triton, so only what has it imports this.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from kvops.models.spec import ModelSpec
from kvops.node.engine.attention.base import KvCache, PagedBatch
from kvops.node.engine.attention.torch_reference import TorchAttention
from kvops.node.engine.cuda.attention import TritonAttention
from kvops.node.engine.cuda.pool import KvFormat, Pool

CPU = torch.device("cpu")


def spec(heads: int, kv_heads: int, head_dim: int) -> ModelSpec:
    return ModelSpec(
        family="llama",
        n_layers=1,
        hidden_size=heads * head_dim,
        intermediate_size=64,
        n_heads=heads,
        n_kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=16,
        max_context_length=8192,
        rope_theta=10000.0,
        rms_norm_eps=1e-5,
        tie_embeddings=True,
    )


@dataclass
class Rows:
    """A request's own `[context, heads, head_dim]` queries, keys and values."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    table: list[int]

    @property
    def length(self) -> int:
        return len(self.keys)


class Paged:
    """Requests of some lengths, their blocks anywhere in the pool."""

    def __init__(
        self,
        shape: ModelSpec,
        block_size: int,
        lengths: list[int],
        *,
        seed: int = 0,
        device: torch.device = CPU,
    ) -> None:
        """`device`: of the kernels; the oracle computes on the CPU."""
        self.spec, self.block_size, self.device = shape, block_size, device
        counts = [-(-length // block_size) for length in lengths]
        self.blocks = sum(counts) + 5
        free = random.Random(seed).sample(range(self.blocks), self.blocks)
        noise = torch.Generator().manual_seed(seed)

        def normal(length: int, heads: int) -> Tensor:
            return torch.randn(length, heads, shape.head_dim, generator=noise)

        self.requests = [
            Rows(
                normal(length, shape.n_heads),
                normal(length, shape.n_kv_heads),
                normal(length, shape.n_kv_heads),
                [free.pop() for _ in range(count)],
            )
            for length, count in zip(lengths, counts, strict=True)
        ]
        self.unused = sorted(free)

    def pool(self, kind: KvFormat = "float32") -> Pool:
        return Pool.allocate(self.spec, self.blocks, self.block_size, kind, self.device)

    def kernels(
        self, pool: Pool, window: int | None = None, dtype: torch.dtype = torch.float32
    ) -> TritonAttention:
        return TritonAttention(pool, self.spec.n_heads, window, dtype)

    def oracle(
        self, window: int | None = None, *, like: Pool | None = None
    ) -> tuple[TorchAttention, KvCache]:
        """In float32. `like`: with the numbers of that pool."""
        cache = KvCache.allocate(self.spec, self.blocks + 1, self.block_size, torch.float32, CPU)
        if like is not None:
            cache.keys.copy_(read(like.keys, like.key_scales))
            cache.values.copy_(read(like.values, like.value_scales))
        return TorchAttention(cache, window), cache

    def batch(self, cuts: list[int]) -> PagedBatch:
        """The last `cuts[i]` tokens of each request."""
        return PagedBatch(
            cuts, [one.length for one in self.requests], [one.table for one in self.requests]
        )

    def last(self, cuts: list[int], part: str) -> Tensor:
        rows = zip(cuts, self.requests, strict=True)
        return torch.cat([getattr(one, part)[one.length - cut :] for cut, one in rows])

    def store_all(
        self, attention: TritonAttention | TorchAttention, dtype: torch.dtype = torch.float32
    ) -> None:
        whole = [one.length for one in self.requests]
        place = self._place(attention)
        keys, values = (self.last(whole, part).to(place, dtype) for part in ("keys", "values"))
        attention.begin(self.batch(whole)).store(0, keys, values)

    def attend(
        self,
        attention: TritonAttention | TorchAttention,
        cuts: list[int],
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        queries = self.last(cuts, "queries").to(self._place(attention), dtype)
        return attention.begin(self.batch(cuts)).attend(0, queries).cpu()

    def _place(self, attention: TritonAttention | TorchAttention) -> torch.device:
        return self.device if isinstance(attention, TritonAttention) else CPU


def read(numbers: Tensor, scales: Tensor | None) -> Tensor:
    """What a pool's numbers stand for, float32."""
    return numbers.float() if scales is None else numbers.float() * scales[..., None]

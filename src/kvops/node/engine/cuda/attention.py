"""Attention on a GPU: `Attention` of `attention/base.py` with Triton kernels.

What a request's sums are made of depends on its own length alone, so its output does not depend on its company.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvops.node.engine.attention.base import PagedBatch
from kvops.node.engine.cuda import attention_kernels as kernels
from kvops.node.engine.cuda.pool import FP8_MAX, Pool
from kvops.node.engine.cuda.tasks import PARTS, StepInputs, Tasks, step_inputs

_CHUNK_ROWS = 64
"""Tokens times query heads of a KV head that a task of a chunk holds."""
_LEAST_SIDE = 16
"""The smallest side of a Triton matrix product."""
_TILE = {4: 32, 2: 64, 1: 64}
"""Positions whose scores are held at once, by the bytes of a number in the products: so that two tiles of head
dimension 128 fit shared memory several times over."""
LEAST_TILES = 4
"""Tiles of a part: shorter parts would cost more to merge than they save."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes that kernels are compiled for."""

    heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    window: int
    """Positions a token looks back to; 0: all."""
    dot: torch.dtype

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads

    @property
    def padded_dim(self) -> int:
        return _side(self.head_dim)

    @property
    def tile(self) -> int:
        return _TILE[self.dot.itemsize]

    @property
    def single_rows(self) -> int:
        return _side(self.group)

    @property
    def chunk_rows(self) -> int:
        return max(_CHUNK_ROWS, self.single_rows)

    @property
    def chunk_tokens(self) -> int:
        return self.chunk_rows // self.group


class TritonAttention:
    def __init__(
        self, pool: Pool, heads: int, sliding_window: int | None, dtype: torch.dtype
    ) -> None:
        """`dtype`: of the queries; matrix products are made in it."""
        kv_heads, block_size, head_dim = pool.keys.shape[2:]
        self._pool = pool
        self.geometry = Geometry(
            heads, kv_heads, head_dim, block_size, sliding_window or 0, computable(dtype)
        )

    def begin(self, batch: PagedBatch) -> TritonStep:
        geometry = self.geometry
        inputs = step_inputs(
            batch, geometry.block_size, geometry.chunk_tokens, self._pool.keys.device
        )
        return self.step(inputs)

    def step(self, inputs: StepInputs) -> TritonStep:
        return TritonStep(self._pool, self.geometry, inputs)


class TritonStep:
    def __init__(self, pool: Pool, geometry: Geometry, inputs: StepInputs) -> None:
        self._pool, self._geometry, self._inputs = pool, geometry, inputs
        lines = (len(inputs.singles.row), PARTS, geometry.heads)
        device = pool.keys.device
        self._mixed = torch.empty(*lines, geometry.head_dim, dtype=torch.float32, device=device)
        self._weights = torch.empty(lines, dtype=torch.float32, device=device)

    def store(self, layer: int, keys: Tensor, values: Tensor) -> None:
        pool, geometry = self._pool, self._geometry
        keys, values = (_as_stored(part, pool.keys.dtype) for part in (keys, values))
        kernels.store[(len(keys), geometry.kv_heads)](
            keys,
            values,
            self._inputs.slots,
            pool.keys[layer],
            pool.values[layer],
            *self._scales(layer),
            keys.stride(0),
            values.stride(0),
            KV_HEADS=geometry.kv_heads,
            HEAD_DIM=geometry.head_dim,
            DIM=geometry.padded_dim,
            BLOCK=geometry.block_size,
            SCALED=pool.key_scales is not None,
            num_warps=1,
        )

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        out = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
        singles, chunks = self._inputs.singles, self._inputs.chunks
        if len(chunks.row):
            self._launch(layer, queries, chunks, out, self._geometry.chunk_rows, parts=1)
        if len(singles.row):
            rows = self._geometry.single_rows
            self._launch(layer, queries, singles, self._mixed, rows, parts=PARTS)
            self._merge(singles, out)
        return out

    def _launch(
        self, layer: int, queries: Tensor, tasks: Tasks, out: Tensor, rows: int, parts: int
    ) -> None:
        pool, geometry, tables = self._pool, self._geometry, self._inputs.tables
        kernels.attend[(len(tasks.row), geometry.kv_heads, parts)](
            queries,
            out,
            self._weights,
            pool.keys[layer],
            pool.values[layer],
            *self._scales(layer),
            *tasks,
            tables,
            queries.stride(0),
            tables.stride(0),
            geometry.head_dim**-0.5,
            KV_HEADS=geometry.kv_heads,
            GROUP=geometry.group,
            HEAD_DIM=geometry.head_dim,
            DIM=geometry.padded_dim,
            BLOCK=geometry.block_size,
            ROWS=rows,
            TILE=geometry.tile,
            WINDOW=geometry.window,
            PARTS=parts,
            LEAST=LEAST_TILES,
            SCALED=pool.key_scales is not None,
            DOT=TRITON_TYPES[geometry.dot],
            num_warps=4,
            num_stages=2,
        )

    def _merge(self, tasks: Tasks, out: Tensor) -> None:
        geometry = self._geometry
        kernels.merge[(len(tasks.row), geometry.heads)](
            self._mixed,
            self._weights,
            out,
            tasks.row,
            tasks.position,
            tasks.tokens,
            HEADS=geometry.heads,
            HEAD_DIM=geometry.head_dim,
            DIM=geometry.padded_dim,
            TILE=geometry.tile,
            WINDOW=geometry.window,
            PARTS=PARTS,
            LEAST=LEAST_TILES,
            num_warps=1,
        )

    def _scales(self, layer: int) -> tuple[Tensor, Tensor]:
        """Where the pool has none, kernels get something to point at, and leave it alone."""
        key, value = self._pool.key_scales, self._pool.value_scales
        if key is None or value is None:
            return self._weights, self._weights
        return key[layer], value[layer]


TRITON_TYPES = {
    torch.float32: tl.float32,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
}


def _side(count: int) -> int:
    """Of a matrix product that holds `count`: a power of two, as Triton has it."""
    side: int = triton.next_power_of_2(count)
    return max(_LEAST_SIDE, side)


def interpreted() -> bool:
    """Do kernels run in Triton's interpreter rather than on a GPU?"""
    return bool(triton.knobs.runtime.interpret)


def computable(dtype: torch.dtype) -> torch.dtype:
    # The interpreter keeps bfloat16 as bare bits, and would multiply those.
    return torch.float32 if interpreted() and dtype == torch.bfloat16 else dtype


def _as_stored(numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounded to the pool's type; int8 is left to the kernel, which also makes its scales."""
    if dtype in (numbers.dtype, torch.int8):
        return numbers
    if dtype == torch.float8_e4m3fn:
        return numbers.clamp(-FP8_MAX, FP8_MAX).to(dtype)
    return numbers.to(dtype)

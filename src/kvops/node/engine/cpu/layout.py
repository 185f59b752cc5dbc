"""The arrays that kernels work on, by name. All are flat; `*_stride` of a buffer's rows are multiples of COLUMNS."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvops.node.engine.cpu.compiler import COLUMNS, LANES

Floats = NDArray[np.float32]
Indexes = NDArray[np.int64]
Numbers = NDArray[np.generic]

QUERY_ROWS = 96
"""Query heads that share the keys of an attention task."""
SPAN = 128
"""Positions whose scores an attention task holds at once: a multiple of every block size."""
SEGMENT = 4 * SPAN
"""Positions whose softmax starts anew, so that several threads can share one long context."""
LINE = SPAN + LANES
"""Numbers a row of scores takes: keys come in whole vectors, so the last block may run over."""


class Shape(NamedTuple):
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    window: int
    """Positions a token looks back to; 0: all."""
    head_norm: bool
    bias: float
    """1 if q, k and v have one, else 0."""
    block_size: int
    key_stride: int
    """Positions in a row of a key block, padded to whole vectors."""
    blocks: int
    eps: np.float32
    query_scale: np.float32

    @property
    def fused_heads(self) -> int:
        return self.heads + 2 * self.kv_heads


class Weights(NamedTuple):
    data: Numbers
    """Packed matrices, one after the other: float32, bfloat16 as uint16, or int8."""
    scales: Floats
    """Of int8: `[tiles, groups, COLUMNS]` a matrix."""
    data_at: Indexes
    """[4 * layers + 2]: qkv, output, gate_up, down of each layer, then embedding and lm_head (the same, if tied)."""
    scales_at: Indexes
    norms: Floats
    """[2 * layers + 1, hidden]"""
    bias: Floats
    """[layers, columns of qkv padded], if there is one."""
    head_norms: Floats
    """[layers, 2, head_dim]: of queries, of keys; if there are any."""
    cos: Floats
    """[positions, head_dim / 2]"""
    sin: Floats


class Pool(NamedTuple):
    keys: Numbers
    """[layers, kv_heads, blocks, head_dim, key_stride]: positions side by side, a head's blocks one after the other,
    which memory reads four times as fast as heads in turn (measured)."""
    values: Numbers
    """[layers, kv_heads, blocks, block_size, head_dim]"""
    key_scales: Floats
    """Of int8: [layers, kv_heads, blocks, key_stride], else empty."""
    value_scales: Floats
    """Of int8: [layers, kv_heads, blocks, block_size], else empty."""


class Buffers(NamedTuple):
    hidden: Floats
    normed: Floats
    qkv: Floats
    attended: Floats
    gates: Floats
    shorts: NDArray[np.int16]
    """Rows as int16, for int8 weights."""
    short_scales: Floats
    logits: Floats
    scratch: Floats
    """For each thread what an attention task needs, `scratch_size` numbers."""
    parts: Floats
    """What tasks of one segment found, until it is merged: each as in `Work.part_size`."""


class Work(NamedTuple):
    """One step: T tokens of R requests, one request after the other."""

    length: int
    """T"""
    tokens: Indexes
    positions: Indexes
    request: Indexes
    """[T] of each token."""
    first: Indexes
    """[R] index of a request's first token."""
    tables: NDArray[np.int32]
    """[R, width] block ids."""
    width: int
    tasks: int
    task_request: Indexes
    """Attention tasks, each for every KV head."""
    task_token: Indexes
    task_tokens: Indexes
    task_segment: Indexes
    """The one segment that a task looks at, -1: all, one after the other."""
    merges: int
    """Runs of tasks that look at different segments for the same tokens."""
    merge_task: Indexes
    """First task of each run."""
    merge_tasks: Indexes
    part_size: int
    """Numbers that a task of one segment leaves for each KV head: sums, then each row's maximum and weight."""
    samples: int
    rows: Indexes
    """[samples] tokens whose logits are wanted."""


def padded(count: int) -> int:
    return -(-count // COLUMNS) * COLUMNS


def group_of(depth: int) -> int:
    """Rows of a matrix that share a scale: at most 512, so that sums of int16 * int8 stay within 31 bits."""
    groups = -(-depth // 512)
    return -(-depth // (2 * groups)) * 2


def groups_of(depth: int) -> int:
    return -(-depth // group_of(depth))


def query_tokens(shape: Shape) -> int:
    """Tokens of one attention task."""
    return max(1, QUERY_ROWS // (shape.heads // shape.kv_heads))


def scratch_size(shape: Shape) -> int:
    rows = query_tokens(shape) * (shape.heads // shape.kv_heads)
    return rows * (3 * shape.head_dim + LINE + 4)

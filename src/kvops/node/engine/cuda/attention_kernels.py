"""Triton kernels over the paged pool: put a step's keys and values into it, attend over block tables, merge parts.

The same source runs on a GPU and, under TRITON_INTERPRET=1, in numpy. The interpreter cannot compute in bfloat16, so
`DOT` says what matrix products are made in; sums and softmax are float32. Masked loads give zeros: another request's
numbers, even NaN, are never read. Attention with running maximum and sum: FlashAttention-2 (arXiv:2307.08691);
a context cut into parts that are merged at the end: Flash-Decoding (Dao et al., 2023).
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def store(
    keys: tl.tensor,  # [T, KV_HEADS, HEAD_DIM], rows `key_stride` apart
    values: tl.tensor,
    slots: tl.tensor,  # [T]
    pool_keys: tl.tensor,  # [blocks, KV_HEADS, BLOCK, HEAD_DIM]
    pool_values: tl.tensor,
    key_scales: tl.tensor,  # [blocks, KV_HEADS, BLOCK]
    value_scales: tl.tensor,
    key_stride: int,
    value_stride: int,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    SCALED: tl.constexpr,
) -> None:
    """One program a token and KV head. Numbers already are of the pool's type, unless that is int8."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    slot = tl.load(slots + token).to(tl.int64)
    row = ((slot // BLOCK) * KV_HEADS + head) * BLOCK + slot % BLOCK
    at = tl.arange(0, DIM)
    inside = at < HEAD_DIM
    key = tl.load(keys + token * key_stride + head * HEAD_DIM + at, mask=inside, other=0.0)
    value = tl.load(values + token * value_stride + head * HEAD_DIM + at, mask=inside, other=0.0)
    if SCALED:
        key, key_scale = _to_int8(key.to(tl.float32))
        value, value_scale = _to_int8(value.to(tl.float32))
        tl.store(key_scales + row, key_scale)
        tl.store(value_scales + row, value_scale)
    tl.store(pool_keys + row * HEAD_DIM + at, key, mask=inside)
    tl.store(pool_values + row * HEAD_DIM + at, value, mask=inside)


@triton.jit
def _to_int8(row):  # type: ignore[no-untyped-def]
    """Symmetric, to nearest: the largest magnitude becomes 127. A row with a NaN or infinity gets the scale NaN."""
    largest = tl.maximum(tl.max(tl.abs(row), axis=0), 1e-20)
    nearest = tl.floor(row * (127.0 / largest) + 0.5)
    numbers = tl.minimum(tl.maximum(nearest, -127.0), 127.0).to(tl.int8)
    return numbers, largest / 127.0 + tl.sum(row * 0.0, axis=0)


@triton.jit
def _span(  # type: ignore[no-untyped-def]
    position,
    count,
    part,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    PARTS: tl.constexpr,
    LEAST: tl.constexpr,
):
    """Where part number `part` of a context begins and ends: whole tiles, by the request's own length alone."""
    end = position + count
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(position - WINDOW + 1, 0) // TILE * TILE
    tiles = (end - begin + TILE - 1) // TILE
    each = tl.maximum((tiles + PARTS - 1) // PARTS, LEAST) * TILE
    return begin + part * each, tl.minimum(begin + part * each + each, end)


@triton.jit(do_not_specialize=["table_stride"])
def attend(
    queries: tl.tensor,  # [T, heads, HEAD_DIM], rows `query_stride` apart
    out: tl.tensor,  # [T, heads, HEAD_DIM]; in parts: float32 [tasks, PARTS, heads, HEAD_DIM]
    weights: tl.tensor,  # in parts: float32 [tasks, PARTS, heads], log2 of the sum of a part's exponents
    keys: tl.tensor,  # a layer's pool: [blocks, KV_HEADS, BLOCK, HEAD_DIM]
    values: tl.tensor,
    key_scales: tl.tensor,  # [blocks, KV_HEADS, BLOCK]
    value_scales: tl.tensor,
    task_request: tl.tensor,  # [tasks] row of the block tables
    task_row: tl.tensor,  # [tasks] first of T
    task_position: tl.tensor,  # [tasks] of that token in its request
    task_count: tl.tensor,  # [tasks] tokens, at most ROWS / GROUP
    tables: tl.tensor,  # block ids, rows `table_stride` apart
    query_stride: int,
    table_stride: int,
    scale: float,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    PARTS: tl.constexpr,
    LEAST: tl.constexpr,
    SCALED: tl.constexpr,
    DOT: tl.constexpr,
) -> None:
    """One program a task, KV head and part. Its rows are tokens times the query heads that share the KV head."""
    task, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    position = tl.load(task_position + task)
    count = tl.load(task_count + task)
    begin, end = _span(position, count, part, TILE, WINDOW, PARTS, LEAST)
    if begin >= end:
        return
    row, dim = tl.arange(0, ROWS), tl.arange(0, DIM)
    token, own_head = row // GROUP, head * GROUP + row % GROUP
    asked = (token < count)[:, None] & (dim < HEAD_DIM)[None, :]
    first = tl.load(task_row + task).to(tl.int64)
    query_at = (first + token)[:, None] * query_stride + own_head[:, None] * HEAD_DIM + dim[None, :]
    query = tl.load(queries + query_at, mask=asked, other=0.0).to(DOT)
    table = tables + tl.load(task_request + task).to(tl.int64) * table_stride

    most = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, DIM], tl.float32)
    for start in range(begin, end, TILE):
        at = start + tl.arange(0, TILE)
        stored = at < end
        block = tl.load(table + at // BLOCK, mask=stored, other=0).to(tl.int64)
        slot = (block * KV_HEADS + head) * BLOCK + at % BLOCK
        there = stored[:, None] & (dim < HEAD_DIM)[None, :]
        number = slot[:, None] * HEAD_DIM + dim[None, :]
        key = tl.load(keys + number, mask=there, other=0.0).to(DOT)
        score = tl.dot(query, tl.trans(key), input_precision="ieee") * (scale * LOG2_E)
        if SCALED:
            score *= tl.load(key_scales + slot, mask=stored, other=0.0)[None, :]
        seen = stored[None, :] & (at[None, :] <= (position + token)[:, None])
        if WINDOW > 0:
            seen = seen & (at[None, :] > (position + token)[:, None] - WINDOW)
        score = tl.where(seen, score, float("-inf"))
        higher = tl.maximum(most, tl.max(score, axis=1))
        # A row that has seen nothing yet keeps -inf: subtracted from itself that would be NaN.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        share = tl.exp2(score - base[:, None])
        kept = tl.exp2(most - base)
        total = total * kept + tl.sum(share, axis=1)
        if SCALED:
            share *= tl.load(value_scales + slot, mask=stored, other=0.0)[None, :]
        value = tl.load(values + number, mask=there, other=0.0).to(DOT)
        mixed = mixed * kept[:, None] + tl.dot(share.to(DOT), value, input_precision="ieee")
        most = higher

    mixed = mixed / total[:, None]
    if PARTS > 1:
        heads = KV_HEADS * GROUP
        line = (task * PARTS + part).to(tl.int64) * heads + own_head
        tl.store(out + line[:, None] * HEAD_DIM + dim[None, :], mixed, mask=asked)
        tl.store(weights + line, most + tl.log2(total), mask=token < count)
    else:
        line = (first + token) * (KV_HEADS * GROUP) + own_head
        tl.store(out + line[:, None] * HEAD_DIM + dim[None, :], mixed, mask=asked)


@triton.jit
def merge(
    mixed: tl.tensor,  # [tasks, PARTS, heads, HEAD_DIM]
    weights: tl.tensor,  # [tasks, PARTS, heads]
    out: tl.tensor,  # [T, heads, HEAD_DIM]
    task_row: tl.tensor,
    task_position: tl.tensor,
    task_count: tl.tensor,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    PARTS: tl.constexpr,
    LEAST: tl.constexpr,
) -> None:
    """One program a task of one token and query head: its parts, each by its share of the sum."""
    task, head = tl.program_id(0), tl.program_id(1)
    part, dim = tl.arange(0, PARTS), tl.arange(0, DIM)
    position, count = tl.load(task_position + task), tl.load(task_count + task)
    begin, end = _span(position, count, part, TILE, WINDOW, PARTS, LEAST)
    there = begin < end
    line = (task.to(tl.int64) * PARTS + part) * HEADS + head
    weight = tl.load(weights + line, mask=there, other=float("-inf"))
    share = tl.exp2(weight - tl.max(weight, axis=0))
    inside = dim < HEAD_DIM
    parts = tl.load(
        mixed + line[:, None] * HEAD_DIM + dim[None, :],
        mask=there[:, None] & inside[None, :],
        other=0.0,
    )
    result = tl.sum(parts * share[:, None], axis=0) / tl.sum(share, axis=0)
    row = tl.load(task_row + task).to(tl.int64)
    tl.store(out + (row * HEADS + head) * HEAD_DIM + dim, result, mask=inside)

"""A Triton kernel for products with int8 weights, one scale an output. Sums are float32."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["count"])
def multiply(
    rows: tl.tensor,  # [count, DEPTH], `row_stride` apart
    weight: tl.tensor,  # [OUT, DEPTH] int8
    scales: tl.tensor,  # [OUT] float32
    bias: tl.tensor,  # [OUT], if HAS_BIAS
    out: tl.tensor,  # [count, OUT]
    count: int,
    row_stride: int,
    OUT: tl.constexpr,
    DEPTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    DOT: tl.constexpr,
) -> None:
    """One program a tile of [ROWS, COLUMNS] of the output; int8 is exact in every float type it is turned into."""
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    asked, there = (row < count)[:, None], column < OUT
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, DEPTH, TILE):
        at = start + tl.arange(0, TILE)
        inside = at < DEPTH
        left_at = row.to(tl.int64)[:, None] * row_stride + at[None, :]
        left = tl.load(rows + left_at, mask=asked & inside[None, :], other=0.0)
        right_at = column.to(tl.int64)[:, None] * DEPTH + at[None, :]
        right = tl.load(weight + right_at, mask=there[:, None] & inside[None, :], other=0)
        total = tl.dot(left.to(DOT), tl.trans(right.to(DOT)), total, input_precision="ieee")
    total *= tl.load(scales + column, mask=there, other=0.0)[None, :]
    if HAS_BIAS:
        total += tl.load(bias + column, mask=there, other=0.0).to(tl.float32)[None, :]
    out_at = row.to(tl.int64)[:, None] * OUT + column[None, :]
    tl.store(out + out_at, total, mask=asked & there[None, :])

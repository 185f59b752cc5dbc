"""Products with packed weights, dealt out as tasks: a register tile's columns of one matrix, for some of the rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from kvops.node.engine.cpu.compiler import COLUMNS, FLOAT_ROWS, ROWS, kernel
from kvops.node.engine.cpu.rows import to_int16
from kvops.node.engine.cpu.sync import barrier, next_task
from kvops.node.engine.cpu.vectors import (
    as_float,
    multiply_add,
    multiply_add_int8,
    outlined,
    tile_rows,
)

_TASK_ROWS = 96
"""Rows of a task: a multiple of every register tile; the columns' weights stay in the cache for the next ones."""


def product(
    weights: Any, matrix: int, depth: int, columns: int, x: Any, x_stride: int, shorts: Any,
    scales: Any, out: Any, out_stride: int, row: int, rows: int, tile: int, beta: float,
) -> None:  # fmt: skip
    """out[row:row + rows, tile] = beta * out + x @ matrix; columns `tile * COLUMNS` to `(tile + 1) * COLUMNS`."""
    raise TypeError("only compiled code calls this")


@overload(product, strict=False)
def _product(
    weights: Any, matrix: Any, depth: Any, columns: Any, x: Any, x_stride: Any, shorts: Any,
    scales: Any, out: Any, out_stride: Any, row: Any, rows: Any, tile: Any, beta: Any,
) -> Any:  # fmt: skip
    return _product_int8 if weights.types[0].dtype == types.int8 else _product_float


def _product_int8(
    weights: Any, matrix: int, depth: int, columns: int, x: Any, x_stride: int, shorts: Any,
    scales: Any, out: Any, out_stride: int, row: int, rows: int, tile: int, beta: float,
) -> None:  # fmt: skip
    limit = (depth + 511) // 512
    group = (depth + 2 * limit - 1) // (2 * limit)
    groups = (depth + 2 * group - 1) // (2 * group)
    multiply_add_int8(
        rows, shorts, row * depth, depth, scales, groups,
        weights.data, weights.data_at[matrix] + tile * COLUMNS * depth,
        weights.scales, weights.scales_at[matrix] + tile * COLUMNS * groups,
        out, row * out_stride + tile * COLUMNS, out_stride, depth // 2, group, beta != 0.0,
    )  # fmt: skip


def _product_float(
    weights: Any, matrix: int, depth: int, columns: int, x: Any, x_stride: int, shorts: Any,
    scales: Any, out: Any, out_stride: int, row: int, rows: int, tile: int, beta: float,
) -> None:  # fmt: skip
    multiply_add(
        rows, x, row * x_stride, x_stride,
        weights.data, weights.data_at[matrix] + tile * COLUMNS * depth, COLUMNS,
        out, row * out_stride + tile * COLUMNS, out_stride, depth, beta != 0.0,
    )  # fmt: skip


def tallest(weights: Any) -> int:
    """Rows of a register tile for this format."""
    raise TypeError("only compiled code calls this")


@overload(tallest, strict=False)
def _tallest(weights: Any) -> Any:
    rows = ROWS if weights.types[0].dtype == types.int8 else FLOAT_ROWS
    return lambda weights: rows


def prepare(weights: Any, x: Any, at: int, depth: int, row: int, shorts: Any, scales: Any) -> None:
    """Bring a finished row into the format that products with these weights read."""
    raise TypeError("only compiled code calls this")


@overload(prepare, strict=False)
def _prepare(weights: Any, x: Any, at: Any, depth: Any, row: Any, shorts: Any, scales: Any) -> Any:
    return _prepare_int8 if weights.types[0].dtype == types.int8 else _prepare_float


def _prepare_int8(
    weights: Any, x: Any, at: int, depth: int, row: int, shorts: Any, scales: Any,
) -> None:  # fmt: skip
    limit = (depth + 511) // 512
    group = (depth + 2 * limit - 1) // (2 * limit) * 2
    groups = (depth + group - 1) // group
    to_int16(x, at, depth, group, shorts, row * depth, scales, row * groups)


def _prepare_float(
    weights: Any, x: Any, at: int, depth: int, row: int, shorts: Any, scales: Any,
) -> None:  # fmt: skip
    return


@kernel
def multiply(
    sync: Any, threads: int, weights: Any, matrix: int, depth: int, columns: int, x: Any,
    x_stride: int, shorts: Any, scales: Any, out: Any, out_stride: int, count: int, beta: float,
) -> None:  # fmt: skip
    """out[count, columns] = beta * out + x[count, depth] @ matrix, beta 0 or 1, by all threads; ends with a barrier."""
    outlined()
    tiles = (columns + COLUMNS - 1) // COLUMNS
    shares = (count + _TASK_ROWS - 1) // _TASK_ROWS
    most = tallest(weights)
    while True:
        task = next_task(sync)
        if task >= tiles * shares:
            break
        row = task % shares * _TASK_ROWS
        left = min(_TASK_ROWS, count - row)
        while left > 0:
            rows = tile_rows(left, most)
            product(
                weights, matrix, depth, columns, x, x_stride, shorts, scales, out, out_stride,
                row, rows, task // shares, beta,
            )  # fmt: skip
            row += rows
            left -= rows
    barrier(sync, threads)


def look_up(weights: Any, matrix: int, depth: int, index: int, out: Any, at: int) -> None:
    """Row `index` of an embedding that is packed like any matrix, as float32."""
    raise TypeError("only compiled code calls this")


@overload(look_up, strict=False)
def _look_up(weights: Any, matrix: Any, depth: Any, index: Any, out: Any, at: Any) -> Any:
    kind = weights.types[0].dtype
    if kind == types.int8:
        return _look_up_int8
    return _look_up_bfloat16 if kind == types.uint16 else _look_up_float32


def _look_up_int8(weights: Any, matrix: int, depth: int, index: int, out: Any, at: int) -> None:
    limit = (depth + 511) // 512
    group = (depth + 2 * limit - 1) // (2 * limit) * 2
    groups = (depth + group - 1) // group
    tile, lane = index // COLUMNS, index % COLUMNS
    start = weights.data_at[matrix] + tile * COLUMNS * depth + 2 * lane
    scale = weights.scales_at[matrix] + tile * COLUMNS * groups + lane
    for k in range(depth):
        value = np.float32(weights.data[start + k // 2 * 2 * COLUMNS + k % 2])
        out[at + k] = value * weights.scales[scale + k // group * COLUMNS]


def _look_up_bfloat16(weights: Any, matrix: int, depth: int, index: int, out: Any, at: int) -> None:
    start = weights.data_at[matrix] + index // COLUMNS * COLUMNS * depth + index % COLUMNS
    for k in range(depth):
        bits = np.uint32(weights.data[start + k * COLUMNS]) << np.uint32(16)
        out[at + k] = as_float(np.int32(bits))


def _look_up_float32(weights: Any, matrix: int, depth: int, index: int, out: Any, at: int) -> None:
    start = weights.data_at[matrix] + index // COLUMNS * COLUMNS * depth + index % COLUMNS
    for k in range(depth):
        out[at + k] = weights.data[start + k * COLUMNS]

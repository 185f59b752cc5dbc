"""Pages of the pool: where a head's block lies, and how a token's keys and values get into it in the pool's format."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from kvops.node.engine.cpu.compiler import kernel
from kvops.node.engine.cpu.rows import norm, rotate, to_bfloat16, to_int8

_ONE = np.float32(1)


def keep(
    x: Any, at: int, count: int, out: Any, out_at: int, stride: int, scales: Any, scale_at: int,
) -> None:  # fmt: skip
    """A float32 row into the pool, in the pool's format."""
    raise TypeError("only compiled code calls this")


@overload(keep, strict=False)
def _keep(
    x: Any, at: Any, count: Any, out: Any, out_at: Any, stride: Any, scales: Any, scale_at: Any,
) -> Any:  # fmt: skip
    if out.dtype == types.int8:
        return _keep_int8
    return _keep_bfloat16 if out.dtype == types.uint16 else _keep_float32


def _keep_int8(
    x: Any, at: int, count: int, out: Any, out_at: int, stride: int, scales: Any, scale_at: int,
) -> None:  # fmt: skip
    scales[scale_at] = to_int8(x, at, count, out, out_at, stride)


def _keep_bfloat16(
    x: Any, at: int, count: int, out: Any, out_at: int, stride: int, scales: Any, scale_at: int,
) -> None:  # fmt: skip
    to_bfloat16(x, at, count, out, out_at, stride)


def _keep_float32(
    x: Any, at: int, count: int, out: Any, out_at: int, stride: int, scales: Any, scale_at: int,
) -> None:  # fmt: skip
    for i in range(count):
        out[out_at + i * stride] = x[at + i]


def scaled(pages: Any) -> bool:
    """Do these numbers have scales beside them?"""
    raise TypeError("only compiled code calls this")


@overload(scaled, strict=False)
def _scaled(pages: Any) -> Any:
    return (lambda pages: True) if pages.dtype == types.int8 else (lambda pages: False)


@kernel
def page_of(shape: Any, layer: int, head: int, block: int) -> Any:
    return (layer * shape.kv_heads + head) * shape.blocks + block


@kernel
def store(
    shape: Any, weights: Any, pool: Any, work: Any, qkv: Any, stride: int, layer: int, token: int,
) -> None:  # fmt: skip
    """Rotate a token's keys in place, and put keys and values where its request's table says."""
    size, half = shape.head_dim, shape.head_dim // 2
    position = work.positions[token]
    at = work.request[token] * work.width + position // shape.block_size
    offset = position % shape.block_size
    for head in range(shape.kv_heads):
        page = page_of(shape, layer, head, work.tables[at])
        key = token * stride + (shape.heads + head) * size
        if shape.head_norm:
            norms_at = (2 * layer + 1) * size
            norm(qkv, key, size, weights.head_norms, norms_at, shape.eps, qkv, key)
        rotate(qkv, key, size, weights.cos, weights.sin, position * half, _ONE, qkv, key)
        keep(
            qkv, key, size, pool.keys, page * size * shape.key_stride + offset, shape.key_stride,
            pool.key_scales, page * shape.key_stride + offset,
        )  # fmt: skip
        keep(
            qkv, key + shape.kv_heads * size, size, pool.values,
            (page * shape.block_size + offset) * size, 1,
            pool.value_scales, page * shape.block_size + offset,
        )  # fmt: skip

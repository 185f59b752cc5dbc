"""What happens to one row at a time: norms, rotation, and the change of number formats.

A number that is not finite stays visible: its row's scale becomes NaN, so all that is computed from it does.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvops.node.engine.cpu.compiler import kernel, reducing
from kvops.node.engine.cpu.vectors import as_bits, as_float

_ROUND = np.float32(1.5 * 2**23)
"""Added and taken off again, it leaves the nearest integer."""
_INFINITE = np.int32(0x7F800000)
_NAN = np.float32(np.nan)
_ZERO, _ONE = np.float32(0), np.float32(1)
_MAX_INT16, _MAX_INT8 = np.float32(32767), np.float32(127)


@reducing
def _sum_of_squares(x: Any, at: int, count: int) -> Any:
    total = _ZERO
    for i in range(at, at + count):
        total += x[i] * x[i]
    return total


@kernel
def norm(
    x: Any, at: int, count: int, weight: Any, weight_at: int, eps: Any, out: Any, out_at: int,
) -> None:  # fmt: skip
    """RMS norm (arXiv:1910.07467)."""
    mean = _sum_of_squares(x, at, count) / np.float32(count)
    scale = _ONE / np.float32(np.sqrt(mean + eps))
    for i in range(count):
        out[out_at + i] = x[at + i] * scale * weight[weight_at + i]


@kernel
def _largest(x: Any, at: int, count: int) -> Any:
    """The largest magnitude; NaN if a number is not finite, whose bits are above all others'."""
    most = np.int32(0)
    for i in range(at, at + count):
        most = max(most, np.int32(as_bits(x[i]) & np.int32(0x7FFFFFFF)))
    return as_float(most) if most < _INFINITE else _NAN


@kernel
def to_int16(
    x: Any, at: int, count: int, group: int, out: Any, out_at: int, scales: Any, scales_at: int,
) -> None:  # fmt: skip
    """Each group of a row in 16 bits with a scale of its own."""
    for index in range((count + group - 1) // group):
        start = index * group
        length = min(group, count - start)
        largest = _largest(x, at + start, length)
        scales[scales_at + index] = largest / _MAX_INT16
        inverse = _MAX_INT16 / largest if largest > _ZERO else _ZERO
        for i in range(start, start + length):
            rounded = (x[at + i] * inverse + _ROUND) - _ROUND
            out[out_at + i] = np.int16(np.int32(rounded))


@kernel
def to_int8(x: Any, at: int, count: int, out: Any, out_at: int, stride: int) -> Any:
    """A row in 8 bits, `stride` apart; returns its scale."""
    largest = _largest(x, at, count)
    inverse = _MAX_INT8 / largest if largest > _ZERO else _ZERO
    for i in range(count):
        rounded = (x[at + i] * inverse + _ROUND) - _ROUND
        out[out_at + i * stride] = np.int8(np.int32(rounded))
    return largest / _MAX_INT8


@kernel
def to_bfloat16(x: Any, at: int, count: int, out: Any, out_at: int, stride: int) -> None:
    """To the nearest, ties to even."""
    for i in range(count):
        bits = np.uint32(as_bits(x[at + i]))
        bits += np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        out[out_at + i * stride] = np.uint16(bits >> np.uint32(16))


@kernel
def rotate(
    x: Any, at: int, size: int, cos: Any, sin: Any, angle_at: int, scale: Any, out: Any,
    out_at: int,
) -> None:  # fmt: skip
    """One head by its position's angles (half-split RoPE, arXiv:2104.09864), times `scale`."""
    half = size // 2
    for i in range(half):
        c, s = cos[angle_at + i] * scale, sin[angle_at + i] * scale
        first, second = x[at + i], x[at + half + i]
        out[out_at + i] = first * c - second * s
        out[out_at + half + i] = second * c + first * s

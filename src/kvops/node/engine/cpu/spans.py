"""Elementwise arithmetic on runs of numbers in LLVM IR: what the compiler would not make vectors of by itself.

Lengths are multiples of LANES. Arrays are flat; `at` counts elements. NaN stays NaN.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kvops.node.engine.cpu.compiler import LANES
from kvops.node.engine.cpu.vectors import FLOATS, INTS, data, fma, load, splat, store

_F32, _I32 = ir.FloatType(), ir.IntType(32)
_ROUND = 1.5 * 2**23
"""Added and taken off again, it leaves the nearest integer, in the low bits too."""
_ROUND_BITS = 0x4B400000
_LOG2_E, _LN2_HIGH, _LN2_LOW = 1.44269502162933349609375, 0.693359375, -2.12194440e-4
_POLYNOMIAL = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    0.5,
)
_LEAST, _MOST = -87.0, 88.0


def _float(value: float) -> Any:
    return ir.Constant(FLOATS, [_F32(_nearest(value))] * LANES)


def _nearest(value: float) -> float:
    import struct

    return float(struct.unpack("f", struct.pack("f", value))[0])


def _int(value: int) -> Any:
    return ir.Constant(INTS, [_I32(value)] * LANES)


def exponential(builder: Any, x: Any) -> Any:
    """e^x, 0 below -87, e^88 above 88, to about 2 units in the last place (Cephes' `expf`)."""
    low = builder.fcmp_ordered("<", x, _float(_LEAST))
    high = builder.fcmp_ordered(">", x, _float(_MOST))
    bounded = builder.select(low, _float(_LEAST), builder.select(high, _float(_MOST), x))
    shifted = fma(builder, bounded, _float(_LOG2_E), _float(_ROUND))
    power = builder.fsub(shifted, _float(_ROUND))
    rest = fma(builder, power, _float(-_LN2_HIGH), bounded)
    rest = fma(builder, power, _float(-_LN2_LOW), rest)
    value = _float(_POLYNOMIAL[0])
    for factor in _POLYNOMIAL[1:]:
        value = fma(builder, value, rest, _float(factor))
    value = fma(builder, builder.fmul(value, rest), rest, rest)
    value = builder.fadd(value, _float(1))
    exponent = builder.sub(builder.bitcast(shifted, INTS), _int(_ROUND_BITS - 127))
    scale = builder.bitcast(builder.shl(exponent, _int(23)), FLOATS)
    return builder.select(low, _float(0), builder.fmul(value, scale))


def _steps(builder: Any, count: Any) -> Any:
    width = ir.Constant(count.type, LANES)
    return cgutils.for_range_slice(builder, ir.Constant(count.type, 0), count, width, count.type)


def _fold(builder: Any, vector: Any, combine: Any) -> Any:
    """One number of all lanes."""
    result = builder.extract_element(vector, _I32(0))
    for lane in range(1, LANES):
        result = combine(result, builder.extract_element(vector, _I32(lane)))
    return result


@intrinsic
def soften(typingctx: Any, x: Any, at: Any, count: Any, most: Any) -> Any:
    """x = e^(x - most) in place; returns their sum."""
    signature = types.float32(x, types.intp, types.intp, types.float32)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, at, count, most = arguments
        x, most = data(context, builder, signature.args[0], x, at), splat(builder, most)
        total = cgutils.alloca_once_value(builder, ir.Constant(FLOATS, None))
        with _steps(builder, count) as (index, _):
            here = builder.gep(x, [index])
            value = exponential(builder, builder.fsub(load(builder, here, FLOATS, 4), most))
            store(builder, value, here)
            builder.store(builder.fadd(builder.load(total), value), total)
        return _fold(builder, builder.load(total), builder.fadd)

    return signature, codegen


@intrinsic
def largest(typingctx: Any, x: Any, at: Any, count: Any) -> Any:
    """The largest of `x`, -inf of none."""
    signature = types.float32(x, types.intp, types.intp)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, at, count = arguments
        x = data(context, builder, signature.args[0], x, at)
        most = cgutils.alloca_once_value(builder, _float(float("-inf")))

        def larger(a: Any, b: Any) -> Any:
            return builder.select(builder.fcmp_ordered(">", a, b), a, b)

        with _steps(builder, count) as (index, _):
            value = load(builder, builder.gep(x, [index]), FLOATS, 4)
            builder.store(larger(value, builder.load(most)), most)
        return _fold(builder, builder.load(most), larger)

    return signature, codegen


@intrinsic
def gate(typingctx: Any, x: Any, at: Any, count: Any) -> Any:
    """silu(gate) * up of a row `[gate, up]`, `count` each, into its first half."""
    signature = types.void(x, types.intp, types.intp)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, at, count = arguments
        x = data(context, builder, signature.args[0], x, at)
        with _steps(builder, count) as (index, _):
            here, there = builder.gep(x, [index]), builder.gep(x, [builder.add(index, count)])
            value, up = load(builder, here, FLOATS, 4), load(builder, there, FLOATS, 4)
            weight = builder.fadd(exponential(builder, builder.fneg(value)), _float(1))
            store(builder, builder.fmul(builder.fdiv(value, weight), up), here)
        return context.get_dummy_value()

    return signature, codegen

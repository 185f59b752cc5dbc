"""Register tiles in LLVM IR: the two products that all time goes into.

Both add in the order of the depth, one accumulator an output, however many rows share the tile: an output is a
function of its own row alone, bit for bit. Arrays are flat; `*_at` and strides count elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kvops.node.engine.cpu.compiler import COLUMNS, FLOAT_ROWS, LANES, ROWS, kernel

_F32, _I32, _I16, _I8 = ir.FloatType(), ir.IntType(32), ir.IntType(16), ir.IntType(8)
FLOATS = ir.VectorType(_F32, LANES)
INTS = ir.VectorType(_I32, LANES)
_SHORTS = ir.VectorType(_I16, 2 * LANES)
_VECTORS = COLUMNS // LANES


def data(context: Any, builder: Any, array_type: Any, array: Any, at: Any) -> Any:
    if isinstance(array_type, types.Array):
        array = context.make_array(array_type)(context, builder, array).data
    return builder.gep(array, [at])


def load(builder: Any, pointer: Any, kind: Any, align: int) -> Any:
    return builder.load(builder.bitcast(pointer, kind.as_pointer()), align=align)


def store(builder: Any, value: Any, pointer: Any) -> None:
    builder.store(value, builder.bitcast(pointer, value.type.as_pointer()), align=4)


def splat(builder: Any, value: Any, lanes: int = LANES) -> Any:
    vector = ir.VectorType(value.type, lanes)
    single = builder.insert_element(ir.Constant(vector, ir.Undefined), value, _I32(0))
    return builder.shuffle_vector(
        single, ir.Constant(vector, ir.Undefined), ir.Constant(ir.VectorType(_I32, lanes), None)
    )


def _call(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    return _call(builder, f"llvm.fma.v{LANES}f32", FLOATS, a, b, c)


def _floats(builder: Any, pointer: Any, kind: Any) -> Any:
    """`LANES` numbers of float32, bfloat16 (as uint16) or int8, as float32."""
    if kind == types.float32:
        return load(builder, pointer, FLOATS, 4)
    if kind == types.uint16:
        halves = load(builder, pointer, ir.VectorType(_I16, LANES), 2)
        wide = builder.shl(builder.zext(halves, INTS), splat(builder, _I32(16)))
        return builder.bitcast(wide, FLOATS)
    bytes_ = load(builder, pointer, ir.VectorType(_I8, LANES), 1)
    return builder.sitofp(builder.sext(bytes_, INTS), FLOATS)


def _dot(builder: Any, sums: Any, a: Any, b: Any) -> Any:
    """sums + a.even * b.even + a.odd * b.odd in int32 (`vpmaddwd`; LLVM makes it `vpdpwssd` where there is one)."""
    name = "llvm.x86.avx512.pmaddw.d.512" if LANES == 16 else "llvm.x86.avx2.pmadd.wd"
    return builder.add(sums, _call(builder, name, INTS, a, b))


@intrinsic
def pointer(typingctx: Any, array: Any) -> Any:
    """An array's numbers alone: as an argument one value instead of seven, which halves the time to compile."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.make_array(signature.args[0])(context, builder, arguments[0]).data

    return types.CPointer(array.dtype)(array), codegen


@intrinsic
def as_float(typingctx: Any, bits: Any) -> Any:
    """The float32 of these 32 bits."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], _F32)

    return types.float32(types.int32), codegen


@intrinsic
def as_bits(typingctx: Any, number: Any) -> Any:
    """The 32 bits of this float32."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], _I32)

    return types.int32(types.float32), codegen


@intrinsic
def outlined(typingctx: Any) -> Any:
    """Said first in a kernel, keeps it a function of its own: copies at each call would only be slow to compile."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), codegen


@kernel
def tile_rows(left: int, most: int) -> int:
    """How many of the rows that are left the next tile takes: there are bodies for 1, 2, 3, 4, 6, 8 and 12."""
    fit = min(left, most)
    if fit <= 4:
        return fit
    return 12 if fit >= 12 else (8 if fit >= 8 else (6 if fit >= 6 else 4))


_HEIGHTS = (1, 2, 3, 4, 6, 8, 12)


def _switch(builder: Any, rows: Any, most: int, emit: Callable[[int], None]) -> None:
    """One body for each height of a tile up to `most`."""
    end = builder.append_basic_block("tile.end")
    switch = builder.switch(rows, end)
    for count in (height for height in _HEIGHTS if height <= most):
        body = builder.append_basic_block(f"tile.{count}")
        switch.add_case(ir.Constant(rows.type, count), body)
        builder.position_at_end(body)
        emit(count)
        builder.branch(end)
    builder.position_at_end(end)


def _slots(builder: Any, kind: Any, rows: int, vectors: int) -> list[list[Any]]:
    return [[cgutils.alloca_once(builder, kind) for _ in range(vectors)] for _ in range(rows)]


def _start(builder: Any, slots: list[list[Any]], outs: list[Any], lane: list[Any], keep: Any) -> None:  # fmt: skip
    """Accumulators at zero, or at what is there if `keep`."""
    each = [
        (slot, out, at)
        for line, out in zip(slots, outs, strict=True)
        for slot, at in zip(line, lane, strict=True)
    ]
    for slot, _, _ in each:
        builder.store(ir.Constant(FLOATS, None), slot)
    with builder.if_then(keep):
        for slot, out, at in each:
            builder.store(load(builder, builder.gep(out, [at]), FLOATS, 4), slot)


def _sum_pairs(
    builder: Any, sums: list[list[Any]], lines: list[Any], b: Any, start: Any, stop: Any
) -> None:
    """Exact sums of int16 rows times int8 columns, two of the depth at a time."""
    intp = start.type
    for line in sums:
        for slot in line:
            builder.store(ir.Constant(INTS, None), slot)
    one, two = ir.Constant(intp, 1), ir.Constant(intp, 2)
    with cgutils.for_range_slice(builder, start, stop, one, intp) as (pair, _):
        row = builder.gep(b, [builder.mul(pair, ir.Constant(intp, 2 * COLUMNS))])
        weights = []
        for v in range(_VECTORS):
            at = builder.gep(row, [ir.Constant(intp, 2 * LANES * v)])
            small = load(builder, at, ir.VectorType(_I8, 2 * LANES), 1)
            weights.append(builder.sext(small, _SHORTS))
        for line, slots in zip(lines, sums, strict=True):
            both = load(builder, builder.gep(line, [builder.mul(pair, two)]), _I32, 2)
            value = builder.bitcast(splat(builder, both), _SHORTS)
            for slot, weight in zip(slots, weights, strict=True):
                builder.store(_dot(builder, builder.load(slot), value, weight), slot)


def _multiply_add(vectors: int) -> Any:
    """A product of float32 rows with `vectors * LANES` columns of any format."""

    @intrinsic
    def tile(
        typingctx: Any, rows: Any, a: Any, a_at: Any, a_stride: Any, b: Any, b_at: Any,
        b_stride: Any, c: Any, c_at: Any, c_stride: Any, depth: Any, keep: Any,
    ) -> Any:  # fmt: skip
        n = types.intp
        signature = types.void(n, a, n, n, b, n, n, c, n, n, n, types.boolean)

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            rows, a, a_at, a_stride, b, b_at, b_stride, c, c_at, c_stride, depth, keep = arguments
            kinds = signature.args
            a = data(context, builder, kinds[1], a, a_at)
            b = data(context, builder, kinds[4], b, b_at)
            c = data(context, builder, kinds[7], c, c_at)
            lane = [ir.Constant(depth.type, v * LANES) for v in range(vectors)]

            def emit(count: int) -> None:
                index = [ir.Constant(depth.type, m) for m in range(count)]
                slots = _slots(builder, FLOATS, count, vectors)
                outs = [builder.gep(c, [builder.mul(m, c_stride)]) for m in index]
                lines = [builder.gep(a, [builder.mul(m, a_stride)]) for m in index]
                _start(builder, slots, outs, lane, keep)
                with cgutils.for_range(builder, depth) as loop:
                    row = builder.gep(b, [builder.mul(loop.index, b_stride)])
                    columns = [
                        _floats(builder, builder.gep(row, [at]), kinds[4].dtype) for at in lane
                    ]
                    for m in range(count):
                        value = builder.load(builder.gep(lines[m], [loop.index]))
                        value = splat(builder, value)
                        for v in range(vectors):
                            old = builder.load(slots[m][v])
                            builder.store(fma(builder, value, columns[v], old), slots[m][v])
                for m in range(count):
                    for v in range(vectors):
                        new = builder.load(slots[m][v])
                        store(builder, new, builder.gep(outs[m], [lane[v]]))

            _switch(builder, rows, FLOAT_ROWS, emit)
            return context.get_dummy_value()

        return signature, codegen

    return tile


multiply_add = _multiply_add(_VECTORS)
"""`c[rows, COLUMNS] (+)= a[rows, depth] @ b[depth, COLUMNS]`; c's old value counts if `keep`."""
multiply_add_narrow = _multiply_add(1)
"""The same over LANES columns."""


@intrinsic
def multiply_add_int8(
    typingctx: Any, rows: Any, a: Any, a_at: Any, a_stride: Any, a_scales: Any, scale_stride: Any,
    b: Any, b_at: Any, b_scales: Any, b_scales_at: Any, c: Any, c_at: Any, c_stride: Any,
    pairs: Any, group_pairs: Any, keep: Any,
) -> Any:  # fmt: skip
    """`c[rows, COLUMNS] (+)= a @ b` of int16 rows and int8 columns, packed as `[depth / 2, COLUMNS, 2]`.

    Products are summed exactly, in int32, within a group of the depth; each group then counts by the scale of its
    row and of its column. `a_scales` starts at the first row, as `a_at` does: `[rows, groups]`.
    """
    n = types.intp
    signature = types.void(
        n, a, n, n, a_scales, n, b, n, b_scales, n, c, n, n, n, n, types.boolean
    )  # fmt: skip

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (
            rows, a, a_at, a_stride, a_scales, scale_stride, b, b_at, b_scales, b_scales_at,
            c, c_at, c_stride, pairs, group_pairs, keep,
        ) = arguments  # fmt: skip
        kinds = signature.args
        intp = pairs.type
        first_row = builder.udiv(a_at, a_stride)
        a = data(context, builder, kinds[1], a, a_at)
        a_scales = data(context, builder, kinds[4], a_scales, builder.mul(first_row, scale_stride))
        b = data(context, builder, kinds[6], b, b_at)
        b_scales = data(context, builder, kinds[8], b_scales, b_scales_at)
        c = data(context, builder, kinds[10], c, c_at)
        lane = [ir.Constant(intp, v * LANES) for v in range(_VECTORS)]
        columns = ir.Constant(intp, COLUMNS)
        groups = builder.udiv(
            builder.sub(builder.add(pairs, group_pairs), ir.Constant(intp, 1)), group_pairs
        )

        def emit(count: int) -> None:
            index = [ir.Constant(intp, m) for m in range(count)]
            sums = _slots(builder, INTS, count, _VECTORS)
            totals = _slots(builder, FLOATS, count, _VECTORS)
            outs = [builder.gep(c, [builder.mul(m, c_stride)]) for m in index]
            lines = [builder.gep(a, [builder.mul(m, a_stride)]) for m in index]
            scales = [builder.gep(a_scales, [builder.mul(m, scale_stride)]) for m in index]
            each = [(m, v) for m in range(count) for v in range(_VECTORS)]
            _start(builder, totals, outs, lane, keep)
            with cgutils.for_range(builder, groups) as outer:
                start = builder.mul(outer.index, group_pairs)
                stop = builder.add(start, group_pairs)
                stop = builder.select(builder.icmp_signed("<", stop, pairs), stop, pairs)
                _sum_pairs(builder, sums, lines, b, start, stop)
                at = builder.gep(b_scales, [builder.mul(outer.index, columns)])
                column = [load(builder, builder.gep(at, [x]), FLOATS, 4) for x in lane]
                row = [builder.load(builder.gep(at, [outer.index])) for at in scales]
                row = [splat(builder, scale) for scale in row]
                for m, v in each:
                    exact = builder.sitofp(builder.load(sums[m][v]), FLOATS)
                    old = builder.load(totals[m][v])
                    new = fma(builder, exact, builder.fmul(row[m], column[v]), old)
                    builder.store(new, totals[m][v])
            for m, v in each:
                store(builder, builder.load(totals[m][v]), builder.gep(outs[m], [lane[v]]))

        _switch(builder, rows, ROWS, emit)
        return context.get_dummy_value()

    return signature, codegen

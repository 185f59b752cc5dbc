"""Threads that compute one step side by side: a barrier between phases, and a counter that deals out tasks.

`sync` is int64[24], zero at first: [0] arrived, [8] phase, [16] next task, each on a cache line of its own.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kvops.node.engine.cpu.compiler import kernel
from kvops.node.engine.cpu.vectors import data

WORDS = 24
_SPINS = 100
"""About 2 µs. Long spins cost most when two threads share a core: each barrier then waits for all of them."""
_YIELDS = 500
"""Then the core is offered to whoever wants it; after that the thread sleeps a moment, since only a core that is
idle attracts the thread that is waited for. Measured beside a busy process: 6.5 instead of 21 ms a small step."""


def _word(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    return data(context, builder, signature.args[0], arguments[0], arguments[1])


@intrinsic
def _add(typingctx: Any, words: Any, at: Any, amount: Any) -> Any:
    """The word before `amount` was added to it."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = _word(context, builder, signature, arguments)
        return builder.atomic_rmw("add", word, arguments[2], "seq_cst")

    return types.int64(words, types.intp, types.int64), codegen


@intrinsic
def _read(typingctx: Any, words: Any, at: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(_word(context, builder, signature, arguments), "acquire", 8)

    return types.int64(words, types.intp), codegen


@intrinsic
def _write(typingctx: Any, words: Any, at: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = _word(context, builder, signature, arguments)
        builder.store_atomic(arguments[2], word, "release", 8)
        return context.get_dummy_value()

    return types.void(words, types.intp, types.int64), codegen


def _call_nothing(name: str, result: Any) -> Any:
    @intrinsic
    def call(typingctx: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind = ir.FunctionType(result, [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [])
            return context.get_dummy_value()

        return types.void(), codegen

    return call


_pause = _call_nothing("llvm.x86.sse2.pause", ir.VoidType())
_yield = _call_nothing("sched_yield", ir.IntType(32))


@intrinsic
def _sleep(typingctx: Any) -> Any:
    """For about 0.1 ms."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [ir.IntType(32)])
        sleep = cgutils.get_or_insert_function(builder.module, kind, "usleep")
        builder.call(sleep, [ir.Constant(ir.IntType(32), 50)])
        return context.get_dummy_value()

    return types.void(), codegen


@kernel
def next_task(sync: Any) -> Any:
    return _add(sync, 16, 1)


@kernel
def barrier(sync: Any, threads: int) -> None:
    """Wait until all are here; tasks count from 0 again. Spins, yields, then sleeps."""
    phase = _read(sync, 8)
    if _add(sync, 0, 1) == threads - 1:
        _write(sync, 0, 0)
        _write(sync, 16, 0)
        _add(sync, 8, 1)
        return
    spins = 0
    while _read(sync, 8) == phase:
        spins += 1
        if spins < _SPINS:
            _pause()
        elif spins < _SPINS + _YIELDS:
            _yield()
        else:
            _sleep()

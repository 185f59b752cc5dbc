"""A whole step in one compiled function, which every thread runs: phases with a barrier after each."""

from __future__ import annotations

from typing import Any

from kvops.node.engine.cpu.attention import attend, merge
from kvops.node.engine.cpu.compiler import COLUMNS, entry, kernel
from kvops.node.engine.cpu.layout import Buffers, Pool, Weights, Work
from kvops.node.engine.cpu.matrix import look_up, multiply, prepare
from kvops.node.engine.cpu.pages import store
from kvops.node.engine.cpu.rows import norm
from kvops.node.engine.cpu.spans import gate
from kvops.node.engine.cpu.sync import barrier, next_task
from kvops.node.engine.cpu.vectors import pointer


@entry
def step(
    thread: int, threads: int, sync: Any, shape: Any, weights: Any, pool: Any, buffers: Any,
    work: Any, scratch_size: int,
) -> None:  # fmt: skip
    """Computes the step's keys, values and logits. `sync` is as the last step left it."""
    _step(
        thread, threads, pointer(sync), shape,
        Weights(
            pointer(weights.data), pointer(weights.scales), pointer(weights.data_at),
            pointer(weights.scales_at), pointer(weights.norms), pointer(weights.bias),
            pointer(weights.head_norms), pointer(weights.cos), pointer(weights.sin),
        ),
        Pool(
            pointer(pool.keys), pointer(pool.values),
            pointer(pool.key_scales), pointer(pool.value_scales),
        ),
        Buffers(
            pointer(buffers.hidden), pointer(buffers.normed), pointer(buffers.qkv),
            pointer(buffers.attended), pointer(buffers.gates), pointer(buffers.shorts),
            pointer(buffers.short_scales), pointer(buffers.logits), pointer(buffers.scratch),
            pointer(buffers.parts),
        ),
        Work(
            work.length, pointer(work.tokens), pointer(work.positions), pointer(work.request),
            pointer(work.first), pointer(work.tables), work.width, work.tasks,
            pointer(work.task_request), pointer(work.task_token), pointer(work.task_tokens),
            pointer(work.task_segment), work.merges, pointer(work.merge_task),
            pointer(work.merge_tasks), work.part_size, work.samples, pointer(work.rows),
        ),
        scratch_size,
    )  # fmt: skip


@kernel
def _step(
    thread: int, threads: int, sync: Any, shape: Any, weights: Any, pool: Any, buffers: Any,
    work: Any, scratch_size: int,
) -> None:  # fmt: skip
    b, count, rows = buffers, work.length, work.samples
    hidden, inner = shape.hidden, shape.intermediate
    attended = shape.heads * shape.head_dim
    fused = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    hidden_s, fused_s = _padded(hidden), _padded(fused)
    attended_s, gates_s = _padded(attended), _padded(2 * inner)
    _embed(sync, threads, shape, weights, b, work, hidden_s)
    for layer in range(shape.layers):
        matrix = 4 * layer
        _norm_rows(sync, threads, shape, weights, b, 2 * layer, count, hidden_s)
        if shape.bias:
            _fill(sync, threads, b.qkv, fused_s, weights.bias, layer * fused_s, count)
        multiply(
            sync, threads, weights, matrix, hidden, fused, b.normed, hidden_s,
            b.shorts, b.short_scales, b.qkv, fused_s, count, shape.bias,
        )  # fmt: skip
        _attention(
            thread, sync, threads, shape, weights, pool, b, work, layer, fused_s, attended_s,
            scratch_size,
        )  # fmt: skip
        multiply(
            sync, threads, weights, matrix + 1, attended, hidden, b.attended, attended_s,
            b.shorts, b.short_scales, b.hidden, hidden_s, count, 1.0,
        )  # fmt: skip
        _norm_rows(sync, threads, shape, weights, b, 2 * layer + 1, count, hidden_s)
        multiply(
            sync, threads, weights, matrix + 2, hidden, 2 * inner, b.normed, hidden_s,
            b.shorts, b.short_scales, b.gates, gates_s, count, 0.0,
        )  # fmt: skip
        _gate_rows(sync, threads, weights, b, inner, count, gates_s)
        multiply(
            sync, threads, weights, matrix + 3, inner, hidden, b.gates, gates_s,
            b.shorts, b.short_scales, b.hidden, hidden_s, count, 1.0,
        )  # fmt: skip
    _last_norm(sync, threads, shape, weights, b, work, hidden_s)
    multiply(
        sync, threads, weights, 4 * shape.layers + 1, hidden, shape.vocabulary, b.normed, hidden_s,
        b.shorts, b.short_scales, b.logits, _padded(shape.vocabulary), rows, 0.0,
    )  # fmt: skip


@kernel
def _padded(count: int) -> int:
    return (count + COLUMNS - 1) // COLUMNS * COLUMNS


@kernel
def _embed(
    sync: Any, threads: int, shape: Any, weights: Any, b: Any, work: Any, stride: int,
) -> None:  # fmt: skip
    while True:
        row = next_task(sync)
        if row >= work.length:
            break
        look_up(weights, 4 * shape.layers, shape.hidden, work.tokens[row], b.hidden, row * stride)
    barrier(sync, threads)


@kernel
def _norm_rows(
    sync: Any, threads: int, shape: Any, weights: Any, b: Any, which: int, count: int, stride: int,
) -> None:  # fmt: skip
    size = shape.hidden
    while True:
        row = next_task(sync)
        if row >= count:
            break
        at = row * stride
        norm(b.hidden, at, size, weights.norms, which * size, shape.eps, b.normed, at)
        prepare(weights, b.normed, at, size, row, b.shorts, b.short_scales)
    barrier(sync, threads)


@kernel
def _last_norm(
    sync: Any, threads: int, shape: Any, weights: Any, b: Any, work: Any, stride: int,
) -> None:  # fmt: skip
    """Only of the rows that are sampled."""
    size = shape.hidden
    while True:
        row = next_task(sync)
        if row >= work.samples:
            break
        at, to = work.rows[row] * stride, row * stride
        norm(b.hidden, at, size, weights.norms, 2 * shape.layers * size, shape.eps, b.normed, to)
        prepare(weights, b.normed, to, size, row, b.shorts, b.short_scales)
    barrier(sync, threads)


@kernel
def _fill(sync: Any, threads: int, out: Any, stride: int, bias: Any, at: int, count: int) -> None:
    while True:
        row = next_task(sync)
        if row >= count:
            break
        for i in range(stride):
            out[row * stride + i] = bias[at + i]
    barrier(sync, threads)


@kernel
def _gate_rows(
    sync: Any, threads: int, weights: Any, b: Any, inner: int, count: int, stride: int,
) -> None:  # fmt: skip
    while True:
        row = next_task(sync)
        if row >= count:
            break
        gate(b.gates, row * stride, inner)
        prepare(weights, b.gates, row * stride, inner, row, b.shorts, b.short_scales)
    barrier(sync, threads)


@kernel
def _attention(
    thread: int, sync: Any, threads: int, shape: Any, weights: Any, pool: Any, b: Any, work: Any,
    layer: int, fused_s: int, attended_s: int, scratch_size: int,
) -> None:  # fmt: skip
    count = work.length
    while True:
        token = next_task(sync)
        if token >= count:
            break
        store(shape, weights, pool, work, b.qkv, fused_s, layer, token)
    barrier(sync, threads)
    tasks = work.tasks * shape.kv_heads
    while True:
        number = next_task(sync)
        if number >= tasks:
            break
        # From the end: the last tokens of a prompt look back furthest, and long tasks go first.
        task = tasks - 1 - number
        attend(
            shape, weights, pool, work, b, fused_s, attended_s, thread * scratch_size, layer,
            task // shape.kv_heads, task % shape.kv_heads,
        )  # fmt: skip
    barrier(sync, threads)
    if work.merges:
        _merge_segments(thread, sync, threads, shape, work, b, attended_s, scratch_size)
    size = shape.heads * shape.head_dim
    while True:
        row = next_task(sync)
        if row >= count:
            break
        prepare(weights, b.attended, row * attended_s, size, row, b.shorts, b.short_scales)
    barrier(sync, threads)


@kernel
def _merge_segments(
    thread: int, sync: Any, threads: int, shape: Any, work: Any, b: Any, stride: int,
    scratch_size: int,
) -> None:  # fmt: skip
    while True:
        number = next_task(sync)
        if number >= work.merges * shape.kv_heads:
            break
        run, head = number // shape.kv_heads, number % shape.kv_heads
        merge(shape, work, b, stride, thread * scratch_size, run, head)
    barrier(sync, threads)

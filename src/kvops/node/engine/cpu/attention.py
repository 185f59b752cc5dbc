"""Attention straight on the block table: a task is some tokens of one request and all query heads of one KV head.

Softmax runs over spans of SPAN positions, counted from 0 (arXiv:2205.14135), anew for each segment of SEGMENT, and
segments merge in order: which tokens share a task, whether they are read at once or in chunks, and whether segments
are tasks of their own changes no bit of a token's result.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvops.node.engine.cpu.compiler import COLUMNS, FLOAT_ROWS, LANES, kernel
from kvops.node.engine.cpu.layout import LINE, SEGMENT, SPAN
from kvops.node.engine.cpu.pages import page_of, scaled
from kvops.node.engine.cpu.rows import norm, rotate
from kvops.node.engine.cpu.spans import largest, soften
from kvops.node.engine.cpu.vectors import multiply_add, multiply_add_narrow, outlined, tile_rows

_ZERO, _ONE = np.float32(0), np.float32(1)
_MASKED = np.float32(-np.inf)


@kernel
def attend(
    shape: Any, weights: Any, pool: Any, work: Any, b: Any, qkv_s: int, out_s: int, at: int,
    layer: int, task: int, head: int,
) -> None:  # fmt: skip
    """One task. Scratch from `at` on: queries, scores, then what one segment gives and what all before it gave."""
    outlined()
    size, shared = shape.head_dim, shape.heads // shape.kv_heads
    token, count, only = work.task_token[task], work.task_tokens[task], work.task_segment[task]
    rows = count * shared
    part = at + rows * (size + LINE)
    total = part + rows * (size + 2)
    _gather(shape, weights, work, b.qkv, qkv_s, b.scratch, at, layer, token, count, head)
    if only >= 0:
        _segment(shape, pool, work, b.scratch, at, part, layer, task, head, only)
        kept = (task * shape.kv_heads + head) * work.part_size
        for i in range(rows * (size + 2)):
            b.parts[kept + i] = b.scratch[part + i]
        return
    _clear(b.scratch, total, rows, size)
    last = work.positions[token + count - 1]
    for segment in range(_oldest(shape, work.positions[token]) // SEGMENT, last // SEGMENT + 1):
        _segment(shape, pool, work, b.scratch, at, part, layer, task, head, segment)
        _merge(b.scratch, total, b.scratch, part, rows, size)
    _put(shape, b.scratch, total, rows, b.attended, out_s, token, head)


@kernel
def merge(shape: Any, work: Any, b: Any, out_s: int, at: int, run: int, head: int) -> None:
    """The segments that tasks of their own have looked at, in order."""
    first, size = work.merge_task[run], shape.head_dim
    rows = work.task_tokens[first] * (shape.heads // shape.kv_heads)
    _clear(b.scratch, at, rows, size)
    for task in range(first, first + work.merge_tasks[run]):
        part = (task * shape.kv_heads + head) * work.part_size
        _merge(b.scratch, at, b.parts, part, rows, size)
    _put(shape, b.scratch, at, rows, b.attended, out_s, work.task_token[first], head)


@kernel
def _oldest(shape: Any, position: int) -> Any:
    """The first position that a token sees."""
    return max(0, position - shape.window + 1) if shape.window else 0


@kernel
def _segment(
    shape: Any, pool: Any, work: Any, scratch: Any, at: int, part: int, layer: int, task: int,
    head: int, segment: int,
) -> None:  # fmt: skip
    """Sums, maxima and weights of a task's rows over one segment, to `part`."""
    outlined()
    size, shared = shape.head_dim, shape.heads // shape.kv_heads
    token, count = work.task_token[task], work.task_tokens[task]
    rows = count * shared
    scores, most = at + rows * size, part + rows * size
    first, last = work.positions[token], work.positions[token + count - 1]
    table = work.task_request[task] * work.width
    _clear(scratch, part, rows, size)
    begin = max(segment * SEGMENT, _oldest(shape, first) // SPAN * SPAN)
    for start in range(begin, min((segment + 1) * SEGMENT, last + 1), SPAN):
        stop = min(start + SPAN, last + 1)
        _score(shape, pool, work, table, scratch, at, scores, rows, layer, head, start, stop)
        _mask(shape, scratch, scores, rows, shared, first, start, stop)
        _soften(scratch, scores, rows, part, size, most)
        _add_values(shape, pool, work, table, scratch, scores, part, rows, layer, head, start, stop)


@kernel
def _clear(x: Any, at: int, rows: int, size: int) -> None:
    """Nothing seen: sums and weights 0, no maximum."""
    _set(x, at, rows * size, _ZERO)
    _set(x, at + rows * size, rows, _MASKED)
    _set(x, at + rows * (size + 1), rows, _ZERO)


@kernel
def _merge(total: Any, at: int, part: Any, part_at: int, rows: int, size: int) -> None:
    """Add a later segment to the earlier ones. One function for all callers, so that all round alike."""
    outlined()
    most, part_most = at + rows * size, part_at + rows * size
    for row in range(rows):
        before, here = total[most + row], part[part_most + row]
        if here == _MASKED:
            continue
        now = max(before, here)
        old, new = np.float32(np.exp(before - now)), np.float32(np.exp(here - now))
        total[most + row] = now
        weight = most + rows + row
        total[weight] = total[weight] * old + part[part_most + rows + row] * new
        for i in range(row * size, (row + 1) * size):
            total[at + i] = total[at + i] * old + part[part_at + i] * new


@kernel
def _put(
    shape: Any, scratch: Any, sums: int, rows: int, out: Any, stride: int, token: int, head: int,
) -> None:  # fmt: skip
    """Each row's sums over its weight."""
    size, shared = shape.head_dim, shape.heads // shape.kv_heads
    for row in range(rows):
        weight = _ONE / scratch[sums + rows * (size + 1) + row]
        target = (token + row // shared) * stride + (head * shared + row % shared) * size
        for i in range(size):
            out[target + i] = scratch[sums + row * size + i] * weight


@kernel
def _gather(
    shape: Any, weights: Any, work: Any, qkv: Any, stride: int, scratch: Any, at: int, layer: int,
    token: int, count: int, head: int,
) -> None:  # fmt: skip
    """Rotated and scaled queries, `[count, shared, head_dim]`."""
    size, half, shared = shape.head_dim, shape.head_dim // 2, shape.heads // shape.kv_heads
    for row in range(count * shared):
        index = token + row // shared
        query = index * stride + (head * shared + row % shared) * size
        to = at + row * size
        if shape.head_norm:
            norm(qkv, query, size, weights.head_norms, 2 * layer * size, shape.eps, qkv, query)
        angle = work.positions[index] * half
        scale = shape.query_scale
        rotate(qkv, query, size, weights.cos, weights.sin, angle, scale, scratch, to)


@kernel
def _score(
    shape: Any, pool: Any, work: Any, table: int, scratch: Any, queries: int, scores: int,
    rows: int, layer: int, head: int, start: int, stop: int,
) -> None:  # fmt: skip
    """scores[rows, start:stop] = queries @ keys."""
    size, width = shape.head_dim, shape.key_stride
    for position in range(start, stop, shape.block_size):
        page = page_of(shape, layer, head, work.tables[table + position // shape.block_size])
        for lane in range(0, shape.block_size, LANES):
            done = 0
            while done < rows:
                some = tile_rows(rows - done, FLOAT_ROWS)
                multiply_add_narrow(
                    some, scratch, queries + done * size, size, pool.keys,
                    page * size * width + lane, width, scratch,
                    scores + done * LINE + position - start + lane, LINE, size, False,
                )  # fmt: skip
                done += some
        if scaled(pool.keys):
            for row in range(rows):
                line = scores + row * LINE + position - start
                for i in range(shape.block_size):
                    scratch[line + i] *= pool.key_scales[page * width + i]


@kernel
def _set(x: Any, at: int, count: int, value: Any) -> None:
    for i in range(at, at + count):
        x[i] = value


@kernel
def _mask(
    shape: Any, scratch: Any, scores: int, rows: int, shared: int, first: int, start: int,
    stop: int,
) -> None:  # fmt: skip
    """A token sees itself and what is before it, no further back than the window."""
    for row in range(rows):
        position = first + row // shared
        line = scores + row * LINE
        seen = max(0, min(SPAN, position + 1 - start))
        _set(scratch, line + seen, SPAN - seen, _MASKED)
        if shape.window:
            _set(scratch, line, min(SPAN, position + 1 - shape.window - start), _MASKED)


@kernel
def _soften(scratch: Any, scores: int, rows: int, sums: int, size: int, most: int) -> None:
    """Scores to weights, and the earlier sums to the new maximum."""
    for row in range(rows):
        line = scores + row * LINE
        before = scratch[most + row]
        now = max(before, largest(scratch, line, SPAN))
        if now == _MASKED:
            _set(scratch, line, SPAN, _ZERO)
            continue
        total = soften(scratch, line, SPAN, now)
        weight = most + rows + row
        if now == before:
            scratch[weight] += total
            continue
        fade = np.float32(np.exp(before - now))
        scratch[most + row] = now
        scratch[weight] = scratch[weight] * fade + total
        for i in range(sums + row * size, sums + (row + 1) * size):
            scratch[i] *= fade


@kernel
def _add_values(
    shape: Any, pool: Any, work: Any, table: int, scratch: Any, scores: int, sums: int,
    rows: int, layer: int, head: int, start: int, stop: int,
) -> None:  # fmt: skip
    """sums[rows, head_dim] += weights[rows, start:stop] @ values; never reads a slot that nobody wrote."""
    size = shape.head_dim
    for position in range(start, stop, shape.block_size):
        block = work.tables[table + position // shape.block_size]
        page = page_of(shape, layer, head, block) * shape.block_size
        depth = min(shape.block_size, stop - position)
        if scaled(pool.values):
            for row in range(rows):
                line = scores + row * LINE + position - start
                for i in range(depth):
                    scratch[line + i] *= pool.value_scales[page + i]
        done = 0
        while done < rows:
            some = tile_rows(rows - done, FLOAT_ROWS)
            line = scores + done * LINE + position - start
            column = 0
            while column + COLUMNS <= size:
                multiply_add(
                    some, scratch, line, LINE, pool.values, page * size + column, size,
                    scratch, sums + done * size + column, size, depth, True,
                )  # fmt: skip
                column += COLUMNS
            while column < size:
                multiply_add_narrow(
                    some, scratch, line, LINE, pool.values, page * size + column, size,
                    scratch, sums + done * size + column, size, depth, True,
                )  # fmt: skip
                column += LANES
            done += some

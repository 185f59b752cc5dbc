"""One step's batch as kernels want it, dealt out in attention tasks.

A task is some tokens of one request over all that they see. Where that makes too few tasks for the threads, each
segment of the context becomes a task of its own, and what those find is merged after.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvops.node.engine.attention.base import PagedBatch
from kvops.node.engine.cpu.layout import SEGMENT, Indexes, Shape, Work, query_tokens

PARTS = 2**20
"""Numbers that the findings of separate segments may take: with more, contexts are not split."""
_TASKS_A_THREAD = 6
"""Enough that the longest task holds nobody up."""


class _Tasks(NamedTuple):
    request: Indexes
    token: Indexes
    tokens: Indexes
    segment: Indexes


def work_of(
    shape: Shape, threads: int, token_ids: list[int], batch: PagedBatch, rows: list[int]
) -> Work:
    """The logits of `rows` among the flattened tokens are wanted."""
    lengths = np.array(batch.query_lengths)
    ends = np.cumsum(lengths)
    first = ends - lengths
    request = np.repeat(np.arange(len(lengths)), lengths)
    positions = np.arange(len(request)) + (np.array(batch.context_lengths) - ends)[request]
    tasks = _whole(lengths, first, ends, query_tokens(shape))
    merge_task, merge_tasks, part_size = np.zeros(0, np.int64), np.zeros(0, np.int64), 0
    if len(tasks.request) * shape.kv_heads < _TASKS_A_THREAD * threads:
        oldest, count = _segments(shape, tasks, positions)
        size = int(tasks.tokens.max()) * (shape.heads // shape.kv_heads) * (shape.head_dim + 2)
        if count.max() > 1 and count.sum() * shape.kv_heads * size <= PARTS:
            merge_task, merge_tasks, part_size = np.cumsum(count) - count, count, size
            tasks = _split(tasks, oldest, count)
    width = max(map(len, batch.block_tables))
    return Work(
        length=len(token_ids),
        tokens=np.array(token_ids, np.int64),
        positions=positions,
        request=request,
        first=first,
        tables=_flat(batch.block_tables, width),
        width=width,
        tasks=len(tasks.request),
        task_request=tasks.request,
        task_token=tasks.token,
        task_tokens=tasks.tokens,
        task_segment=tasks.segment,
        merges=len(merge_task),
        merge_task=merge_task,
        merge_tasks=merge_tasks,
        part_size=part_size,
        samples=len(rows),
        rows=np.array(rows, np.int64),
    )


def _whole(lengths: Indexes, first: Indexes, ends: Indexes, most: int) -> _Tasks:
    """Up to `most` tokens each, over their whole context."""
    pieces = -(-lengths // most)
    request = np.repeat(np.arange(len(lengths)), pieces)
    piece = np.arange(len(request)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    token = first[request] + piece * most
    return _Tasks(
        request, token, np.minimum(most, ends[request] - token), np.full(len(request), -1)
    )


def _segments(shape: Shape, tasks: _Tasks, positions: Indexes) -> tuple[Indexes, Indexes]:
    """The first segment that each task sees, and how many."""
    first, last = positions[tasks.token], positions[tasks.token + tasks.tokens - 1]
    oldest = np.maximum(first - shape.window + 1, 0) if shape.window else np.zeros_like(first)
    return oldest // SEGMENT, last // SEGMENT - oldest // SEGMENT + 1


def _split(tasks: _Tasks, oldest: Indexes, count: Indexes) -> _Tasks:
    """One task for each segment that a task sees, in order."""
    task = np.repeat(np.arange(len(count)), count)
    segment = np.arange(len(task)) - (np.cumsum(count) - count)[task] + oldest[task]
    return _Tasks(tasks.request[task], tasks.token[task], tasks.tokens[task], segment)


def _flat(tables: list[list[int]], width: int) -> NDArray[np.int32]:
    flat = np.zeros((len(tables), width), np.int32)
    for row, table in zip(flat, tables, strict=True):
        row[: len(table)] = table
    return flat.ravel()

"""A step's work as the numbers that kernels read: slots, block tables, and tasks, each some tokens of one request.

One array, so that it reaches the GPU in one copy. Plain numpy and torch: nothing here needs a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvops.node.engine.attention.base import PagedBatch

Ints = NDArray[np.int32]

PARTS = 16
"""A context of one query is cut into at most so many parts, so that a few long requests fill the GPU."""


class Tasks(NamedTuple):
    """[N] int32 each. No task is of two requests."""

    request: Tensor
    """Row of the block tables."""
    row: Tensor
    """First of the step's flattened tokens."""
    position: Tensor
    """Of that token in its request."""
    tokens: Tensor
    """How many."""


class StepInputs(NamedTuple):
    slots: Tensor
    """[T] int32: where each token's keys and values go."""
    tables: Tensor
    """[R, width] int32 block ids."""
    singles: Tasks
    """Requests with one token in this step."""
    chunks: Tasks
    """The others, cut into at most so many tokens a task."""


def step_inputs(
    batch: PagedBatch, block_size: int, most_tokens: int, device: torch.device
) -> StepInputs:
    """`most_tokens`: of a task that is a part of a chunk."""
    lengths, contexts = np.array(batch.query_lengths), np.array(batch.context_lengths)
    tables = padded_tables(batch.block_tables, max(map(len, batch.block_tables)))
    single = lengths == 1
    singles = _cut(np.flatnonzero(single), lengths, contexts, 1)
    chunks = _cut(np.flatnonzero(~single), lengths, contexts, most_tokens)
    slots = slots_of(tables, lengths, contexts, block_size)
    parts: list[NDArray[Any]] = [slots, tables.ravel(), *singles, *chunks]
    flat = torch.from_numpy(np.concatenate(parts).astype(np.int32)).to(device)
    stored, table, *tasks = torch.split(flat, [len(part) for part in parts])
    return StepInputs(stored, table.view(tables.shape), Tasks(*tasks[:4]), Tasks(*tasks[4:]))


def slots_of(
    tables: Ints, lengths: NDArray[np.int64], contexts: NDArray[np.int64], block_size: int
) -> NDArray[np.int64]:
    """[T]: the last `lengths` positions of each context, as slots."""
    request = np.repeat(np.arange(len(lengths)), lengths)
    ends = np.cumsum(lengths)
    positions = np.arange(len(request)) + (contexts - ends)[request]
    first: NDArray[np.int64] = tables[request, positions // block_size] * np.int64(block_size)
    slots: NDArray[np.int64] = first + positions % block_size
    return slots


def padded_tables(tables: Sequence[Sequence[int]], width: int) -> Ints:
    """[R, width], zeros behind the end of each."""
    padded = np.zeros((len(tables), width), np.int32)
    lengths = np.fromiter(map(len, tables), np.int64, len(tables))
    there = np.arange(width) < lengths[:, None]
    padded[there] = np.fromiter(chain.from_iterable(tables), np.int32, int(lengths.sum()))
    return padded


def _cut(
    members: NDArray[np.int64],
    lengths: NDArray[np.int64],
    contexts: NDArray[np.int64],
    most_tokens: int,
) -> list[NDArray[np.int64]]:
    """Request, row, position and count of each task of `members`."""
    pieces = -(-lengths[members] // most_tokens)
    request = np.repeat(members, pieces)
    firsts = np.cumsum(pieces) - pieces
    done = (np.arange(len(request)) - np.repeat(firsts, pieces)) * most_tokens
    row = (np.cumsum(lengths) - lengths)[request] + done
    position = (contexts - lengths)[request] + done
    return [request, row, position, np.minimum(lengths[request] - done, most_tokens)]

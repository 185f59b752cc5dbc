"""Attention in plain torch, for any device: the oracle that every kernel is tested against.

Requests of one query length and similar context are gathered into one padded tensor and attended at once.
Padding repeats a request's own last row: a row of somebody else's, even masked, could carry a NaN over.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from kvops.node.engine.attention.base import KvCache, PagedBatch

Index = NDArray[np.int64]

GATHERED = 2**16
"""Positions whose keys and values are gathered at once, or one request's, if it has more: bounds a step's memory."""


@dataclass(frozen=True, slots=True)
class Group:
    """N requests with t queries each, contexts padded to L."""

    queries: Tensor
    """[N * t] rows of the step's flattened tokens."""
    rows: Tensor
    """[N * kv_heads * L] rows of a layer's pool seen as `[rows, head_dim]`."""
    mask: Tensor
    """[N, 1, t, L]: 0 where a query may look, -inf elsewhere."""
    requests: int


class TorchAttention:
    def __init__(self, cache: KvCache, sliding_window: int | None) -> None:
        self._cache = cache
        self._window = sliding_window
        self._heads, self._size = cache.keys.shape[2:4]

    def begin(self, batch: PagedBatch) -> TorchAttentionStep:
        lengths, contexts = np.array(batch.query_lengths), np.array(batch.context_lengths)
        table = _padded(batch.block_tables)
        stored = self._stored_rows(table, lengths, contexts)
        groups = [
            self._group(table[members], contexts[members], _queries(lengths, members))
            for members in _alike(batch)
        ]
        return TorchAttentionStep(self._cache, self._device(stored), groups)

    def _group(self, table: Index, contexts: Index, queries: Index) -> Group:
        positions = np.minimum(np.arange(contexts.max()), contexts[:, None] - 1)
        rows = self._rows(np.take_along_axis(table, positions // self._size, axis=1), positions)
        mask = self._mask(contexts, queries.shape[1])
        return Group(
            queries=self._device(queries),
            rows=self._device(rows.swapaxes(1, 2)),
            mask=torch.from_numpy(mask).to(self._cache.keys.device, self._cache.keys.dtype),
            requests=len(contexts),
        )

    def _mask(self, contexts: Index, length: int) -> NDArray[np.float32]:
        """[N, 1, length, L]: the last `length` positions of each context look back."""
        key = np.arange(contexts.max())
        query = (contexts[:, None] - length + np.arange(length))[:, :, None]
        visible = key <= query
        if self._window is not None:
            visible &= key > query - self._window
        return np.where(visible, np.float32(0), np.float32(-np.inf))[:, None]

    def _stored_rows(self, table: Index, lengths: Index, contexts: Index) -> Index:
        """[T, kv_heads] pool rows of this step's tokens."""
        request = np.repeat(np.arange(len(lengths)), lengths)
        ends = np.cumsum(lengths)
        positions = np.arange(ends[-1]) + (contexts - ends)[request]
        return self._rows(table[request, positions // self._size], positions)

    def _rows(self, blocks: Index, positions: Index) -> Index:
        """`[…]` blocks and positions to `[…, kv_heads]` rows of a layer's pool."""
        first = blocks * (self._heads * self._size) + positions % self._size
        return first[..., None] + np.arange(self._heads) * self._size

    def _device(self, index: Index) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(index).reshape(-1)).to(self._cache.keys.device)


class TorchAttentionStep:
    def __init__(self, cache: KvCache, stored_rows: Tensor, groups: Sequence[Group]) -> None:
        self._head_dim = cache.keys.shape[-1]
        self._kv_heads = cache.keys.shape[2]
        self._keys = [layer.view(-1, self._head_dim) for layer in cache.keys]
        self._values = [layer.view(-1, self._head_dim) for layer in cache.values]
        self._stored_rows = stored_rows
        self._groups = groups

    def store(self, layer: int, keys: Tensor, values: Tensor) -> None:
        self._keys[layer].index_copy_(0, self._stored_rows, keys.reshape(-1, self._head_dim))
        self._values[layer].index_copy_(0, self._stored_rows, values.reshape(-1, self._head_dim))

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        if len(self._groups) == 1:
            return self._attend_group(layer, self._groups[0], queries)
        out = torch.empty_like(queries)
        for group in self._groups:
            out[group.queries] = self._attend_group(layer, group, queries[group.queries])
        return out

    def _attend_group(self, layer: int, group: Group, queries: Tensor) -> Tensor:
        """[N * t, heads, head_dim] to the same."""
        heads = queries.shape[1]
        query = queries.view(group.requests, -1, heads, self._head_dim).transpose(1, 2)
        pooled = (group.requests, self._kv_heads, -1, self._head_dim)
        keys = self._keys[layer].index_select(0, group.rows).view(pooled)
        values = self._values[layer].index_select(0, group.rows).view(pooled)
        out = functional.scaled_dot_product_attention(
            query, keys, values, attn_mask=group.mask, enable_gqa=heads != self._kv_heads
        )
        return out.transpose(1, 2).reshape(-1, heads, self._head_dim)


def _queries(lengths: Index, members: list[int]) -> Index:
    """[N, t] rows of the members' queries among the flattened tokens."""
    starts = np.cumsum(lengths) - lengths
    return starts[members][:, None] + np.arange(lengths[members[0]])


def _alike(batch: PagedBatch) -> list[list[int]]:
    """Requests by query length and power-of-two context, so that padding at most doubles the work."""
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, (length, context) in enumerate(
        zip(batch.query_lengths, batch.context_lengths, strict=True)
    ):
        alone = index if length > 1 else -1
        groups[alone, context.bit_length()].append(index)
    return [part for group in groups.values() for part in _parts(group, batch.context_lengths)]


def _parts(members: list[int], contexts: Sequence[int]) -> list[list[int]]:
    most = max(1, GATHERED // max(contexts[index] for index in members))
    return [members[at : at + most] for at in range(0, len(members), most)]


def _padded(tables: list[list[int]]) -> Index:
    width = max(map(len, tables))
    return np.array([table + [0] * (width - len(table)) for table in tables], dtype=np.int64)

"""The compiled decoder as the runner sees it: a step's tokens and tables in, logits out."""

from __future__ import annotations

import time
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvops.models.spec import ModelSpec
from kvops.node.engine.attention.base import PagedBatch
from kvops.node.engine.cpu.compiler import LANES, SUPPORTED
from kvops.node.engine.cpu.crew import Crew, Kind
from kvops.node.engine.cpu.layout import (
    Buffers,
    Pool,
    Shape,
    Weights,
    Work,
    groups_of,
    padded,
    scratch_size,
)
from kvops.node.engine.cpu.step import step
from kvops.node.engine.cpu.team import Team
from kvops.node.engine.cpu.work import PARTS, work_of
from kvops.node.engine.reserve import Reserve

KvFormat = Literal["float32", "bfloat16", "int8"]

_KEPT: dict[KvFormat, type[np.generic]] = {
    "float32": np.float32,
    "bfloat16": np.uint16,
    "int8": np.int8,
}


def serves(spec: ModelSpec) -> bool:
    """Can kernels compute this model on this machine?"""
    sizes = (spec.head_dim, spec.intermediate_size)
    return SUPPORTED and spec.hidden_size % 2 == 0 and all(size % LANES == 0 for size in sizes)


def shape_of(spec: ModelSpec, blocks: int, block_size: int) -> Shape:
    return Shape(
        layers=spec.n_layers,
        hidden=spec.hidden_size,
        intermediate=spec.intermediate_size,
        heads=spec.n_heads,
        kv_heads=spec.n_kv_heads,
        head_dim=spec.head_dim,
        vocabulary=spec.vocab_size,
        window=spec.sliding_window or 0,
        head_norm=spec.qk_norm,
        bias=float(spec.attention_bias),
        block_size=block_size,
        key_stride=_key_stride(block_size),
        blocks=blocks,
        eps=np.float32(spec.rms_norm_eps),
        query_scale=np.float32(spec.head_dim**-0.5),
    )


def _key_stride(block_size: int) -> int:
    return -(-block_size // LANES) * LANES


def block_bytes(spec: ModelSpec, block_size: int, kind: KvFormat) -> int:
    """Keys, values and their scales of a block, all layers."""
    positions = _key_stride(block_size) + block_size
    scale = 4 if kind == "int8" else 0
    each = spec.head_dim * np.dtype(_KEPT[kind]).itemsize + scale
    return spec.n_layers * spec.n_kv_heads * positions * each


def allocate_pool(shape: Shape, kind: KvFormat, reserve: Reserve | None = None) -> Pool:
    """From `reserve` as far as it goes, if there is one."""
    zeros = _zeros if reserve is None else reserve.zeros
    pages = shape.layers * shape.blocks * shape.kv_heads
    scales = pages if kind == "int8" else 0
    return Pool(
        keys=zeros(pages * shape.head_dim * shape.key_stride, _KEPT[kind]),
        values=zeros(pages * shape.head_dim * shape.block_size, _KEPT[kind]),
        key_scales=zeros(scales * shape.key_stride, np.float32),
        value_scales=zeros(scales * shape.block_size, np.float32),
    )


def allocate_buffers(shape: Shape, tokens: int, rows: int, threads: int) -> Buffers:
    counts = _buffer_counts(shape, tokens, rows, threads)
    return Buffers(**{name: _zeros(count, _stored(name)) for name, count in counts.items()})


def buffer_bytes(shape: Shape, tokens: int, rows: int, threads: int) -> int:
    """What `allocate_buffers` takes."""
    counts = _buffer_counts(shape, tokens, rows, threads)
    return sum(count * np.dtype(_stored(name)).itemsize for name, count in counts.items())


def _buffer_counts(shape: Shape, tokens: int, rows: int, threads: int) -> dict[str, int]:
    attended = shape.heads * shape.head_dim
    depths = (shape.hidden, shape.intermediate, attended)
    return {
        "hidden": tokens * padded(shape.hidden),
        "normed": max(tokens, rows) * padded(shape.hidden),
        "qkv": tokens * padded(shape.fused_heads * shape.head_dim),
        "attended": tokens * padded(attended),
        "gates": tokens * padded(2 * shape.intermediate),
        "shorts": max(tokens, rows) * max(depths),
        "short_scales": max(tokens, rows) * max(map(groups_of, depths)),
        "logits": rows * padded(shape.vocabulary),
        "scratch": threads * scratch_size(shape),
        "parts": PARTS,
    }


def _stored(buffer: str) -> type[np.generic]:
    return np.int16 if buffer == "shorts" else np.float32


def _zeros(count: int, stored: type[np.generic]) -> NDArray[Any]:
    """Zeros that are written, so that every page is really there before the first request counts on it."""
    array = np.empty(count, stored)
    array.fill(0)
    return array


class CompiledDecoder:
    def __init__(
        self, shape: Shape, weights: Weights, pool: Pool, team: Team, tokens: int, rows: int
    ) -> None:
        self._shape, self._weights, self._pool, self._team = shape, weights, pool, team
        self._crew = Crew(team.threads)
        self._room = (tokens, rows)
        self._buffers = allocate_buffers(shape, tokens, rows, team.threads)
        self._scratch = scratch_size(shape)
        self._vocabulary = padded(shape.vocabulary)

    @property
    def weight_bytes(self) -> int:
        return sum(array.nbytes for array in self._weights)

    @property
    def pool_bytes(self) -> int:
        return sum(array.nbytes for array in self._pool)

    @property
    def buffer_bytes(self) -> int:
        return sum(array.nbytes for array in self._buffers)

    def compile(self) -> bool:
        """Make ready what `logits` runs, so that no request waits for it; True if the disk's cache had it."""
        import numba

        work = self._work([0], PagedBatch([1], [1], [[0]]), [0])
        arguments = self._team.signature(*self._arguments(work))
        known = sum(step.stats.cache_hits.values())  # type: ignore[attr-defined]
        step.compile(tuple(map(numba.typeof, arguments)))  # type: ignore[attr-defined]
        return sum(step.stats.cache_hits.values()) > known  # type: ignore[attr-defined]

    def logits(self, token_ids: list[int], batch: PagedBatch, rows: list[int]) -> Tensor:
        """[T] tokens in; [R, vocabulary] float32 of the `rows` among them, valid until the next call."""
        self._make_room(len(token_ids), len(rows))
        work = self._work(token_ids, batch, rows)
        self._run(work, (len(token_ids).bit_length(), sum(batch.context_lengths).bit_length()))
        count = len(rows)
        logits = torch.from_numpy(self._buffers.logits[: count * self._vocabulary])
        return logits.view(count, self._vocabulary)[:, : self._shape.vocabulary]

    def _run(self, work: Work, kind: Kind) -> None:
        level = self._crew.choose(kind)
        began = time.perf_counter()
        self._team.run(step, self._crew.threads(level), *self._arguments(work))
        self._crew.observe(kind, level, time.perf_counter() - began)

    def _make_room(self, tokens: int, rows: int) -> None:
        if tokens > self._room[0] or rows > self._room[1]:
            self._room = (max(tokens, self._room[0]), max(rows, self._room[1]))
            self._buffers = allocate_buffers(self._shape, *self._room, self._team.threads)

    def _arguments(self, work: Work) -> tuple[Any, ...]:
        return self._shape, self._weights, self._pool, self._buffers, work, self._scratch

    def _work(self, token_ids: list[int], batch: PagedBatch, rows: list[int]) -> Work:
        return work_of(self._shape, self._team.threads, token_ids, batch, rows)

"""Runs one batch through the model: flattens it, computes it, samples the requests whose last token it reached."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from kvops.node.engine.attention.base import PagedBatch
from kvops.node.engine.sampler import Sample, Sampler
from kvops.node.engine.scheduler import Batch, Chunk


class Model(Protocol):
    def logits(self, token_ids: list[int], batch: PagedBatch, rows: list[int]) -> Tensor:
        """Store keys and values of T tokens; float32 `[R, vocabulary]` of `rows` among them, until the next call."""


class Runner:
    def __init__(self, model: Model, sampler: Sampler) -> None:
        self.model = model
        self.sampler = sampler

    @torch.inference_mode()
    def run(self, batch: Batch) -> list[Sample]:
        """One sample for each chunk that samples, in order."""
        chunks = batch.chunks
        rows = _last_rows(chunks)
        logits = self.model.logits(_token_ids(chunks), _paged(chunks), rows)
        if not rows:
            return []
        return self.sampler.sample(logits, [chunk.request for chunk in chunks if chunk.samples])


def _token_ids(chunks: tuple[Chunk, ...]) -> list[int]:
    tokens: list[int] = []
    for chunk in chunks:
        tokens += chunk.request.tokens[chunk.start : chunk.start + chunk.length]
    return tokens


def _paged(chunks: tuple[Chunk, ...]) -> PagedBatch:
    return PagedBatch(
        query_lengths=[chunk.length for chunk in chunks],
        context_lengths=[chunk.start + chunk.length for chunk in chunks],
        block_tables=[chunk.request.table for chunk in chunks],
    )


def _last_rows(chunks: tuple[Chunk, ...]) -> list[int]:
    """Where the last token of each sampling chunk lies among the flattened tokens."""
    rows, end = [], 0
    for chunk in chunks:
        end += chunk.length
        if chunk.samples:
            rows.append(end - 1)
    return rows

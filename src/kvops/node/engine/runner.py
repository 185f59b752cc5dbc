"""Runs one batch through the model: flattens it, computes it, samples the requests whose last token it reached."""

from __future__ import annotations

import torch
from torch import Tensor

from kvops.node.engine.attention.base import Attention, PagedBatch
from kvops.node.engine.model.decoder import Decoder
from kvops.node.engine.sampler import Sample, Sampler
from kvops.node.engine.scheduler import Batch, Chunk


class Runner:
    def __init__(
        self, decoder: Decoder, attention: Attention, sampler: Sampler, device: torch.device
    ) -> None:
        self._decoder = decoder
        self._attention = attention
        self._device = device
        self.sampler = sampler

    @torch.inference_mode()
    def run(self, batch: Batch) -> list[Sample]:
        """One sample for each chunk that samples, in order."""
        chunks = batch.chunks
        step = self._attention.begin(_paged(chunks))
        hidden = self._decoder.forward(self._token_ids(chunks), self._positions(chunks), step)
        rows = _last_rows(chunks)
        if not rows:
            return []
        logits = self._decoder.logits(hidden[rows])
        return self.sampler.sample(logits, [chunk.request for chunk in chunks if chunk.samples])

    def _token_ids(self, chunks: tuple[Chunk, ...]) -> Tensor:
        tokens: list[int] = []
        for chunk in chunks:
            tokens += chunk.request.tokens[chunk.start : chunk.start + chunk.length]
        return torch.tensor(tokens, device=self._device)

    def _positions(self, chunks: tuple[Chunk, ...]) -> Tensor:
        positions: list[int] = []
        for chunk in chunks:
            positions += range(chunk.start, chunk.start + chunk.length)
        return torch.tensor(positions, device=self._device)


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

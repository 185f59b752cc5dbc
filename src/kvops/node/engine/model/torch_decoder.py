"""The decoder and attention in torch as one model: any device, and the oracle of the compiled one."""

from __future__ import annotations

import torch
from torch import Tensor

from kvops.node.engine.attention.base import Attention, PagedBatch
from kvops.node.engine.model.decoder import Decoder


class TorchDecoder:
    def __init__(self, decoder: Decoder, attention: Attention, device: torch.device) -> None:
        self._decoder = decoder
        self._attention = attention
        self._device = device

    def logits(self, token_ids: list[int], batch: PagedBatch, rows: list[int]) -> Tensor:
        step = self._attention.begin(batch)
        hidden = self._decoder.forward(
            torch.tensor(token_ids, device=self._device), self._positions(batch), step
        )
        return self._decoder.logits(hidden[rows])

    def _positions(self, batch: PagedBatch) -> Tensor:
        positions: list[int] = []
        for length, context in zip(batch.query_lengths, batch.context_lengths, strict=True):
            positions += range(context - length, context)
        return torch.tensor(positions, device=self._device)

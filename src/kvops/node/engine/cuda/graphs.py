"""Decode steps as CUDA graphs: one launch instead of hundreds, for a ladder of batch sizes.

A graph reads the same memory each time, so a step's inputs are copied there, and rows that no request fills write to
the scratch block. Invariant: a row beyond the batch touches no block that the block pool knows of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from kvops.node.engine.attention.base import PagedBatch
from kvops.node.engine.cuda.tasks import StepInputs, Tasks, padded_tables
from kvops.node.engine.model.decoder import Decoder
from kvops.node.engine.model.torch_decoder import TorchDecoder

Replay = Callable[[], Tensor]
Capture = Callable[[Replay], Replay]
"""From what computes to what computes the same again, from the same memory into the same memory."""


def ladder(most: int) -> list[int]:
    """Batch sizes with a graph of their own: close together where padding would cost most, and `most` itself."""
    steps = [1, 2, 4, *range(8, 64, 8), *range(64, most, 32)]
    return [size for size in steps if size < most] + [most]


class Rung:
    """The inputs of a decode step of `rows` requests, at fixed places."""

    def __init__(
        self, rows: int, width: int, block_size: int, scratch_block: int, device: torch.device
    ) -> None:
        """`width`: blocks of the longest request."""
        self.rows, self.width = rows, width
        self._block_size, self._scratch = block_size, scratch_block
        size = rows * (3 + width)
        self._host = torch.zeros(size, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._device = torch.zeros(size, dtype=torch.int32, device=device)
        self.token_ids, self.positions, slots, tables = _parted(self._device, rows)
        each = torch.arange(rows, dtype=torch.int32, device=device)
        singles = Tasks(each, each, self.positions, torch.ones_like(each))
        self.inputs = StepInputs(slots, tables, singles, Tasks(*(each[:0] for _ in range(4))))
        self._write([], [], [])

    def holds(self, tables: Sequence[Sequence[int]]) -> bool:
        return len(tables) <= self.rows and max(map(len, tables)) <= self.width

    def fill(self, token_ids: Sequence[int], batch: PagedBatch) -> None:
        """One token of each request; the rows behind them compute nothing that counts."""
        positions = [context - 1 for context in batch.context_lengths]
        self._write(token_ids, positions, batch.block_tables)

    def _write(
        self, token_ids: Sequence[int], positions: Sequence[int], tables: Sequence[Sequence[int]]
    ) -> None:
        count, size = len(token_ids), self._block_size
        host = [part.numpy() for part in _parted(self._host, self.rows)]
        host_tokens, host_positions, host_slots, host_tables = host
        host_tokens[:count], host_tokens[count:] = token_ids, 0
        host_positions[:count], host_positions[count:] = positions, 0
        if count:
            host_tables[:count] = padded_tables(tables, self.width)
        host_tables[count:] = self._scratch
        block = host_tables[np.arange(self.rows), host_positions // size]
        host_slots[:] = block * size + host_positions % size
        self._device.copy_(self._host)


def _parted(flat: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Token ids, positions, slots `[rows]`, and tables `[rows, width]`."""
    return (
        flat[:rows],
        flat[rows : 2 * rows],
        flat[2 * rows : 3 * rows],
        flat[3 * rows :].view(rows, -1),
    )


class DecodeGraphs:
    def __init__(
        self, forward: Callable[[Rung], Tensor], rungs: Sequence[Rung], capture: Capture
    ) -> None:
        """`forward`: the hidden states `[rows, hidden]` of a rung's inputs."""
        self._rungs = sorted(rungs, key=lambda rung: rung.rows)
        # The largest first: the others then fit in the memory that it took.
        self._replays = {
            rung.rows: capture(partial(forward, rung)) for rung in reversed(self._rungs)
        }

    def hidden(self, token_ids: Sequence[int], batch: PagedBatch) -> Tensor | None:
        """[R, hidden] of one token a request, until the next call; None if there is no graph for so many."""
        for rung in self._rungs:
            if rung.holds(batch.block_tables):
                rung.fill(token_ids, batch)
                return self._replays[rung.rows]()[: len(token_ids)]
        return None


class GraphedDecoder:
    """Steps of decodes alone by their graph, all others one operation at a time."""

    def __init__(self, decoder: Decoder, eager: TorchDecoder, graphs: DecodeGraphs) -> None:
        self._decoder, self._eager, self._graphs = decoder, eager, graphs

    def logits(self, token_ids: list[int], batch: PagedBatch, rows: list[int]) -> Tensor:
        if len(token_ids) == len(batch.query_lengths) == len(rows):
            hidden = self._graphs.hidden(token_ids, batch)
            if hidden is not None:
                return self._decoder.logits(hidden)
        return self._eager.logits(token_ids, batch, rows)


def cuda_graphs() -> Capture:
    """Graphs that share one pool of memory: only one of them runs at a time."""
    pool = torch.cuda.graph_pool_handle()

    def capture(compute: Replay) -> Replay:
        with torch.inference_mode():
            _warm_up(compute)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                out = compute()

        def replay() -> Tensor:
            graph.replay()
            return out

        return replay

    return capture


def _warm_up(compute: Replay) -> None:
    """Compile kernels and make libraries ready on another stream: neither is possible while a graph is captured."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        compute()
    torch.cuda.current_stream().wait_stream(stream)

"""How much of a GPU the pool may have: what is left beside the weights and the largest step, which is run to see.

Invariant: the measured step has every token and every row that the node's bounds allow, all of them sampled.
"""

from __future__ import annotations

import torch

from kvops.machine import Memory
from kvops.node.engine.memory import device_memory, peak_of
from kvops.node.engine.request import Request
from kvops.node.engine.runner import Runner
from kvops.node.engine.scheduler import Batch, Chunk
from kvops.node.pool_size import Needs, plan_blocks
from kvops.node.sampling import SamplingParams
from kvops.node.wire import Start, Submit

GRAPH_BYTES = 8 * 2**20
"""Set aside for each graph beside the memory that its step works in; not measured, the driver keeps it."""


def largest_batch(start: Start, scratch_block: int, longest: int) -> Batch:
    """As many requests and tokens as a step may have: long prompts, and one token of each other request.

    `longest`: tokens of a request. All blocks are the scratch block.
    """
    count = min(start.max_batch_size, start.max_batched_tokens)
    chunks, left = [], start.max_batched_tokens
    for index in range(count):
        length = min(longest, left - (count - index - 1))
        chunks.append(Chunk(_request(index, length, scratch_block, start), 0, length))
        left -= length
    return Batch((), tuple(chunks))


def _request(index: int, length: int, scratch_block: int, start: Start) -> Request:
    """One whose sampling takes as much memory as any."""
    submit = Submit(
        request_id=f"size {index}",
        prompt_token_ids=(0,) * length,
        params=SamplingParams(max_tokens=1, temperature=1.0, top_p=0.9, logprobs=1),
        tenant="",
        salt=b"",
    )
    request = Request.from_submit(submit, index)
    request.table = [scratch_block] * -(-length // start.pool.block_size)
    return request


def measure(runner: Runner, batch: Batch, device: torch.device) -> int:
    """Bytes that the batch takes at its peak, once kernels are compiled and libraries have their workspace."""
    runner.run(batch)
    return peak_of(device, lambda: _run(runner, batch))


def _run(runner: Runner, batch: Batch) -> None:
    runner.run(batch)


def blocks_beside(start: Start, needs: Needs, device: torch.device) -> int:
    """Blocks of the pool, now that the weights are loaded. Raises ConfigError or NodeStartError."""
    torch.cuda.empty_cache()
    now = device_memory(device)
    # The weights are no longer free, but the plan counts them as one of the needs.
    return plan_blocks(start.pool, needs, Memory(now.total, now.free + needs.weights))

"""A model that is arithmetic: what it stores for a token follows from the tokens up to it, and so does the next one.

It reads the context from the blocks it is told to read. A block that holds what another prompt, a stale or a
half-finished one left there gives itself away at once, and outputs can be told from the prompt alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from zlib import crc32

from kvops.node.engine.request import Request
from kvops.node.engine.scheduler import Chunk

Slot = tuple[int, int]

POISON = -1
"""What a chunk stores that went wrong."""


def states(tokens: Sequence[int]) -> list[int]:
    """What is stored for each of the tokens, in order."""
    chain = accumulate(tokens, lambda state, token: crc32(bytes((token,)), state), initial=1)
    return list(chain)[1:]


def next_token(state: int) -> int | None:
    """0 or 1; None: the end."""
    return None if state % 13 == 0 else state >> 7 & 1


def solo(prompt: Sequence[int], max_tokens: int) -> list[int]:
    """The output of a request that has the model to itself."""
    tokens = list(prompt)
    for _ in range(max_tokens):
        token = next_token(states(tokens)[-1])
        if token is None:
            break
        tokens.append(token)
    return tokens[len(prompt) :]


class Memory:
    """What lies in the slots of the pool."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._slots: dict[Slot, int] = {}

    def compute(self, chunk: Chunk, *, sick: bool = False) -> None:
        """Store the chunk's states, made from what its request's table leads to."""
        request, end = chunk.request, chunk.start + chunk.length
        true = states(request.tokens[:end])
        read = [self._slots.get(self._slot(request, at)) for at in range(chunk.start)]
        assert read == true[: chunk.start], f"{request.request_id} reads what is not its context"
        for at in range(chunk.start, end):
            self._slots[self._slot(request, at)] = POISON if sick else true[at]

    def poisoned(self, blocks: set[int]) -> set[int]:
        return {slot[0] for slot, state in self._slots.items() if state == POISON} & blocks

    def _slot(self, request: Request, at: int) -> Slot:
        return request.table[at // self._size], at % self._size

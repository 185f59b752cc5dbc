"""How long a step of the model without weights takes: small, but with the shape of a real one."""

from __future__ import annotations

from dataclasses import dataclass

from kvops.node.engine.scheduler import Batch, Chunk

LONG = 900
"""Tokens beyond which what is slow for long requests is slow."""
CROWD = 4
"""Waiting requests from which on `no_recovery` has seen an overload."""


@dataclass(frozen=True)
class Costs:
    """Seconds."""

    step: float = 0.006
    """Of any step: reading the weights."""
    decode: float = 0.0004
    """For each request that gets its next token."""
    prompt_token: float = 30e-6
    attention: float = 2e-9
    """For each prompt token and each token before it."""

    def prefill(self, chunk: Chunk) -> float:
        before = chunk.start + chunk.length / 2
        return chunk.length * (self.prompt_token + self.attention * before)


class Stopwatch:
    def __init__(self, defects: frozenset[str]) -> None:
        self._defects = defects
        self._costs = Costs()
        self._requests = 0
        self._overloaded = False

    def arrived(self, waiting: int) -> None:
        """A request came, and so many wait now."""
        self._requests += 1
        self._overloaded = self._overloaded or waiting >= CROWD

    def seconds(self, batch: Batch) -> float:
        """Of the next step."""
        costs = self._costs
        decodes = costs.decode * len(batch.decodes) + sum(map(self._extra, batch.decodes))
        prompts = sum(costs.prefill(chunk) * self._cliff(chunk) for chunk in batch.prefills)
        return (costs.step + decodes + prompts) * self._wear()

    def _extra(self, decode: Chunk) -> float:
        slow = "slow_when_long" in self._defects and decode.start > LONG
        return 0.06 if slow else 0.0

    def _cliff(self, chunk: Chunk) -> float:
        return 20.0 if "ttft_cliff" in self._defects and len(chunk.request.tokens) > LONG else 1.0

    def _wear(self) -> float:
        """How much slower than new."""
        if "slows_down" in self._defects:
            return (1.0 + self._requests / 50) ** 2
        return 8.0 if "no_recovery" in self._defects and self._overloaded else 1.0

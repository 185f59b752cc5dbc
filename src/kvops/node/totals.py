"""Counters since the node started. The engine counts from its own start, so a dead engine's counts are carried on."""

from __future__ import annotations

from dataclasses import dataclass, fields

from kvops.node.wire import EngineStats


@dataclass
class EngineTotals:
    """What former engine processes had counted."""

    steps: int = 0
    evictions: int = 0
    preemptions: int = 0
    query_tokens: int = 0
    hit_tokens: int = 0
    invariant_violations: int = 0

    def carry(self, stats: EngineStats | None) -> None:
        """Add the last counts of an engine that died. Afterwards its stats must not be added again."""
        total = self.with_current(stats)
        for field in fields(self):
            setattr(self, field.name, getattr(total, field.name))

    def with_current(self, stats: EngineStats | None) -> EngineTotals:
        if stats is None:
            return self
        return EngineTotals(
            steps=self.steps + stats.steps,
            evictions=self.evictions + stats.kv.evictions,
            preemptions=self.preemptions + stats.kv.preemptions,
            query_tokens=self.query_tokens + stats.prefix_cache.query_tokens,
            hit_tokens=self.hit_tokens + stats.prefix_cache.hit_tokens,
            invariant_violations=self.invariant_violations + stats.invariant_violations,
        )

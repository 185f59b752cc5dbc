"""How many threads a step gets: all, or half as many again and again, whichever was faster lately for steps like it.

A small step is bound by memory that few cores read as fast as all, and a thread that the system puts aside holds up
the others at every barrier. The result of a step does not depend on the choice, in no bit.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import mean

_KEPT = 6
_TRY_EVERY = 32
"""Steps after which a neighbouring number is tried: at worst one step in 32 takes twice as long."""

Kind = tuple[int, int]


@dataclass(slots=True)
class _Record:
    """Of one kind of step."""

    level: int = 0
    steps: int = 0
    seconds: dict[int, deque[float]] = field(default_factory=dict)
    """By level."""


class Crew:
    def __init__(self, threads: int) -> None:
        self._levels = [max(1, threads >> level) for level in range(threads.bit_length())]
        self._records: dict[Kind, _Record] = {}

    def choose(self, kind: Kind) -> int:
        """The level of this step; `kind` is the bit lengths of its tokens and of its contexts' sum."""
        record = self._records.setdefault(kind, _Record())
        record.steps += 1
        turn, rest = divmod(record.steps, _TRY_EVERY)
        if rest == 0:
            other = record.level + (1 if turn % 2 else -1)
            return min(max(other, 0), len(self._levels) - 1)
        return record.level

    def threads(self, level: int) -> int:
        return self._levels[level]

    def observe(self, kind: Kind, level: int, seconds: float) -> None:
        record = self._records[kind]
        record.seconds.setdefault(level, deque(maxlen=_KEPT)).append(seconds)
        record.level = min(record.seconds, key=lambda at: mean(record.seconds[at]))

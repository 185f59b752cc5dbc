"""A run in phases: what goes on at which second, the same for every user and every process."""

from __future__ import annotations

import msgspec

BASELINE, BURST, RECOVERY = "baseline", "burst", "recovery"
BEFORE, STORM, QUIET, AFTER = "before", "storm", "quiet", "after"
CANARY = "canary"
"""Its requests are named by the phase too: `canary after`."""


class Phase(msgspec.Struct, frozen=True):
    name: str
    seconds: float


class Timetable(msgspec.Struct, frozen=True):
    phases: tuple[Phase, ...]

    @classmethod
    def of(cls, *phases: tuple[str, float]) -> Timetable:
        """A phase of no seconds is left out."""
        return cls(tuple(Phase(name, seconds) for name, seconds in phases if seconds > 0))

    @property
    def seconds(self) -> float:
        return sum(phase.seconds for phase in self.phases)

    def at(self, elapsed: float) -> str | None:
        """Name of the phase; None after the last."""
        for phase in self.phases:
            if elapsed < phase.seconds:
                return phase.name
            elapsed -= phase.seconds
        return None

    def left(self, elapsed: float) -> float:
        """Seconds until the phase of this moment ends; 0 after the last."""
        for phase in self.phases:
            if elapsed < phase.seconds:
                return phase.seconds - elapsed
            elapsed -= phase.seconds
        return 0.0

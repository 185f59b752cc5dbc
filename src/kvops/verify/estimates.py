"""How long the rest of a run will take: from what the same checks took the last time on this node, else from what they

usually take, scaled by how this node has fared so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from kvops.units import format_duration
from kvops.verify import runs
from kvops.verify.result import CheckResult
from kvops.verify.selection import PlannedCheck

_LOOK_BACK = 20
"""Kept runs that are looked at."""
_SCALE = (0.2, 10.0)


class Estimates:
    def __init__(self, checks: Sequence[PlannedCheck], last: dict[str, float]) -> None:
        """`last`: seconds each check took on this node."""
        self._expected = {p.check.id: last.get(p.check.id, p.check.typical) for p in checks}
        self._guessed = {p.check.id for p in checks if p.check.id not in last}
        self._left = [p.check.id for p in checks]
        self._guess, self._took = 0.0, 0.0

    def ended(self, result: CheckResult) -> None:
        if result.id not in self._left:
            return
        self._left.remove(result.id)
        if result.id in self._guessed and result.n:
            self._guess += self._expected[result.id]
            self._took += result.took_seconds

    def of(self, check: str) -> float:
        """Seconds that `check` is expected to take."""
        return self._expected[check] * (self._scale() if check in self._guessed else 1.0)

    def left(self, running_for: float = 0.0) -> float:
        """Seconds to the end; `running_for`: seconds since the check that runs now began."""
        if not self._left:
            return 0.0
        now, *later = self._left
        return max(self.of(now) - running_for, 0.0) + sum(map(self.of, later))

    def _scale(self) -> float:
        """Smoothed by ten typical seconds, so that one quick check does not promise a quick rest."""
        low, high = _SCALE
        return min(max((self._took + 10) / (self._guess + 10), low), high)


def last_times(node: str, url: str) -> dict[str, float]:
    """Seconds of each check in the latest kept run of this node that made it."""
    found: dict[str, float] = {}
    for report in islice(runs.reports(), _LOOK_BACK):
        if report.target.name == node or report.target.url == url:
            for check in report.checks:
                if check.n and check.verdict in ("pass", "warn"):
                    found.setdefault(check.id, check.took_seconds)
    return found


def roughly(seconds: float) -> str:
    """`about 40 s left`."""
    return f"{about(seconds)} left"


def about(seconds: float) -> str:
    """`about 40 s`, in steps that do not pretend to know more."""
    if seconds < 5:
        return "a few seconds"
    step = 5 if seconds < 60 else 15 if seconds < 600 else 60
    rounded = max(round(seconds / step) * step, step)
    if rounded >= 60 and rounded % 60 == 0:
        return f"about {rounded // 60} min"
    return f"about {rounded} s" if rounded < 60 else f"about {format_duration(float(rounded))}"

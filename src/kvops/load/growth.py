"""Whether the first-token time grows with the prompt's length as attention predicts, or jumps.

Reading a prompt costs a part that is linear in its length and one that is quadratic, so from one length to the next
the time can grow by the square of their ratio at most. What is over that by more than a tolerance is a jump: a cache
that no longer fits, a kernel that changes, a limit that is hit.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec


class Point(msgspec.Struct, frozen=True):
    length: float
    """Tokens."""
    seconds: float


class Growth(msgspec.Struct, frozen=True):
    before: Point
    after: Point
    found: float
    """How many times longer it took."""
    predicted: float
    """How many times longer it may take: the square of the lengths' ratio."""

    def jumps(self, tolerance: float) -> bool:
        """`tolerance`: so many times over what is predicted."""
        return self.found > self.predicted * tolerance


def growths(points: Sequence[Point]) -> list[Growth]:
    """Of neighbours in length."""
    ordered = sorted(
        (point for point in points if point.seconds > 0), key=lambda point: point.length
    )
    return [
        Growth(one, two, two.seconds / one.seconds, (two.length / one.length) ** 2)
        for one, two in itertools.pairwise(ordered)
    ]

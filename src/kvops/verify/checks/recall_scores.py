"""What counts of found numbers prove, length by length and depth by depth, and which prompts to ask more of.

A length is held to a share of the shortest's score. It holds once the counts speak against a drop to that share of the
share, and is lost once they speak against the share itself; between the two more answers are asked for. Each of the
two errors is bounded over all lengths and cells together.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import NormalDist
from typing import Literal

import msgspec

from kvops.load.records import RequestRecord
from kvops.load.statistics.confidence import wilson
from kvops.load.statistics.shares import (
    Counted,
    against_ratio,
    ratio,
    so_few_by_chance,
    so_few_of,
)

FALSE_ALARM = 0.01
"""Of a whole grid: half of it shared by the lengths, half by the cells."""
CANNOT = 0.005
"""Probability, at most, that a model of the wanted score is taken for one that cannot recall, at each look."""
HOLDS = math.log(16)
"""Of the likelihood ratio from which a length holds while more could be asked: 9 of 9 beside 9 of 9 are enough."""
HOLDS_AT_LAST = NormalDist().inv_cdf(0.95) ** 2 / 2
"""Once no more can be asked: 95 %, one-sided."""
SUSPECT = 0.05
"""Chance of a cell's few right answers from which it is looked at again."""
LEAST_IN_CELL = 3
HALF = 0.5
"""A depth is lost, not just weak, below this share of the score on short prompts."""

State = Literal["holds", "lost", "open"]


class Cell(msgspec.Struct, frozen=True):
    """Answers of one length and depth."""

    depth: float
    counted: Counted


class Score(msgspec.Struct, frozen=True):
    """Answers of one length."""

    length: int
    cells: tuple[Cell, ...]

    @property
    def counted(self) -> Counted:
        return Counted(
            sum(cell.counted.hits for cell in self.cells),
            sum(cell.counted.n for cell in self.cells),
        )

    @property
    def worst(self) -> Cell:
        return min(self.cells, key=lambda cell: cell.counted.share)


class Standing(msgspec.Struct, frozen=True):
    """What the answers say of one length beside the shortest."""

    score: Score
    state: State
    why: str = ""


def scores(records: Iterable[RequestRecord]) -> list[Score]:
    """By rising length; prompts without a number are left out."""
    found: dict[int, dict[float, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        if record.needle is not None and record.needle.depth is not None and not record.cancelled:
            found[record.needle.length][record.needle.depth].append(record.needle.found)
    return [
        Score(
            length,
            tuple(
                Cell(at, Counted(sum(right), len(right))) for at, right in sorted(depths.items())
            ),
        )
        for length, depths in sorted(found.items())
    ]


def cannot_recall(shortest: Score, reference: float) -> bool:
    """The model surely finds fewer numbers in short prompts than it must for the check to say anything."""
    return so_few_of(shortest.counted, reference) <= CANNOT


def standings(found: Sequence[Score], share: float, *, last: bool) -> list[Standing]:
    """Of every length but the shortest, which the others are measured by. `last`: no more will be asked."""
    shortest, longer = found[0].counted, found[1:]
    cells = sum(len(score.cells) for score in longer)
    return [_standing(one, shortest, share, len(longer), cells, last) for one in longer]


def _standing(
    one: Score, shortest: Counted, share: float, lengths: int, cells: int, last: bool
) -> Standing:
    counted = one.counted
    dropped = ratio(counted, shortest) < share
    surely = NormalDist().inv_cdf(1 - FALSE_ALARM / 2 / lengths) ** 2 / 2
    if dropped and against_ratio(counted, shortest, share) >= surely:
        return Standing(one, "lost", str(counted))
    suspects = [cell for cell in one.cells if _suspect(cell.counted, shortest)]
    for cell in suspects:
        if so_few_by_chance(cell.counted, shortest) <= FALSE_ALARM / 2 / cells:
            return Standing(one, "lost", f"{cell.counted} at {cell.depth:g} % depth")
    if suspects:
        worst = min(suspects, key=lambda cell: cell.counted.share)
        return Standing(one, "open", f"{worst.counted} at {worst.depth:g} % depth")
    enough = HOLDS_AT_LAST if last else HOLDS
    holds = not dropped and against_ratio(counted, shortest, share**2) >= enough
    return Standing(one, "holds" if holds else "open", str(counted))


def _suspect(cell: Counted, shortest: Counted) -> bool:
    few = cell.n >= LEAST_IN_CELL and cell.share < HALF * shortest.share
    return few and so_few_by_chance(cell, shortest) <= SUSPECT


def unsettled(found: Sequence[Score], share: float, reference: float) -> list[int]:
    """Lengths of which more must be asked; none once anything is decided for the whole grid."""
    if len(found) < 2 or cannot_recall(found[0], reference):
        return []
    stand = standings(found, share, last=False)
    if any(one.state == "lost" for one in stand):
        return []
    return [one.score.length for one in stand if one.state == "open"]


def row(one: Score) -> dict[str, object]:
    """For evidence."""
    counted, worst = one.counted, one.worst
    low, high = wilson(counted.hits, counted.n) or (None, None)
    return {
        "length": one.length, "hits": counted.hits, "n": counted.n, "worst_depth": worst.depth,
        "worst_hits": worst.counted.hits, "worst_n": worst.counted.n, "wilson_low": low, "wilson_high": high,
    }  # fmt: skip

"""Two runs of one kind against each other: a row a measure, and whether the second is worse."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import msgspec

from kvops.load.records import RequestRecord
from kvops.load.reports.base import RunData
from kvops.load.reports.doubts import excuse, unsent_gaps
from kvops.load.runs import RunInfo
from kvops.load.statistics import token_rates, unsent, window_seconds
from kvops.load.statistics.compare import (
    LEAST,
    Comparison,
    Direction,
    compare,
    compare_shares,
    compare_tails,
)
from kvops.load.statistics.goodput import value_of
from kvops.load.statistics.percentiles import Values

SCHEMA_VERSION = 1
CONFIDENCE = 0.98
"""Of each measure, as Kayenta's judge has it: several are asked at once."""
WINDOWS = 30
NEAR = 10
ENDS = 2
"""Windows that the ends of a run cut."""
PER_WINDOW = 10
"""Requests in a window of a run's throughput: the tokens of fewer come and go by chance."""
Unit = Literal["seconds", "tokens/s", "share"]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    measure: str
    unit: Unit
    before: float | None
    """Median, or share."""
    after: float | None
    comparison: Comparison
    why: str = ""
    """What the runs lack where the comparison cannot tell, or why it does not count."""
    is_speed: bool = True
    """Made of the client's times, and no better than they are."""


class RunComparison(msgspec.Struct, frozen=True, kw_only=True):
    schema_version: int = SCHEMA_VERSION
    before: str
    after: str
    outcome: Literal["better", "same", "worse", "inconclusive"]
    rows: tuple[Row, ...]
    differences: tuple[str, ...]
    """In what the two were asked; empty: they are alike."""
    doubts: tuple[str, ...]
    """Why neither result may be relied on: then nothing is called the same or better, and where it was the client or
    others on the machine, nothing that is slower is called worse."""


EXIT_CODES = {"better": 0, "same": 0, "worse": 1, "inconclusive": 3}


def differences(before: RunInfo, after: RunInfo) -> list[str]:
    """In what the two runs were not asked the same; seeds, nodes and versions may differ, they are what is compared.

    Of two scenarios nothing more is told than that they are two: their options have nothing in common.
    """
    if before.scenario != after.scenario:
        return [f"scenario: {before.scenario} and {after.scenario}"]
    pairs = [(name, getattr(before, name), getattr(after, name)) for name in ("model", "users")]
    paces = [msgspec.to_builtins(one.pacing) for one in (before, after)]
    pairs += [
        (_flag(_ARRIVALS.get(name, name)), old, paces[1][name]) for name, old in paces[0].items()
    ]
    options = sorted({*before.options, *after.options})
    pairs += [(_flag(name), before.options.get(name), after.options.get(name)) for name in options]
    told = [(name, _told(old), _told(new)) for name, old, new in pairs]
    return [f"{name}: {old} and {new}" for name, old, new in told if old != new]


_ARRIVALS = {"kind": "arrivals"}
"""Options whose name is not that of the field they set."""


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def compare_runs(before: RunData, after: RunData, tolerance: float) -> RunComparison:
    """`tolerance`: a share of the median before under which a shift is none."""
    blurred = excuse(before) is not None or excuse(after) is not None
    rows = tuple(_explained(row, before, after, blurred) for row in _rows(before, after, tolerance))
    doubts = (*_doubts("before", before), *_doubts("after", after))
    return RunComparison(
        before=before.info.run,
        after=after.info.run,
        outcome=_outcome(rows, bool(doubts), blurred),
        rows=rows,
        differences=tuple(differences(before.info, after.info)),
        doubts=doubts,
    )


def _explained(row: Row, before: RunData, after: RunData, blurred: bool) -> Row:
    if blurred and row.is_speed and row.comparison.outcome == "worse":
        return msgspec.structs.replace(row, why="does not count, for the doubts below")
    asked = [sum(not one.cancelled for one in data.records) for data in (before, after)]
    return msgspec.structs.replace(row, why=_unsure(row, (asked[0], asked[1])))


def _outcome(
    rows: Sequence[Row], doubtful: bool, blurred: bool
) -> Literal["better", "same", "worse", "inconclusive"]:
    """`blurred`: the times of one run are not the node's alone; then slower is not worse, but more failures are."""
    outcomes = [row.comparison.outcome for row in rows]
    if any(row.comparison.outcome == "worse" and not (blurred and row.is_speed) for row in rows):
        return "worse"
    if doubtful or "too few" in outcomes or not outcomes:
        return "inconclusive"
    return "better" if "better" in outcomes else "same"


def _doubts(which: str, data: RunData) -> Iterator[str]:
    if data.info.status != "finished":
        yield f"{which}: the run is {data.info.status}"
    yield from (f"{which}: {line}" for line in data.damage)
    slow = excuse(data)
    if slow is not None:
        yield f"{which}: {slow}"
    else:
        yield from (f"{which}: {line}" for line in unsent_gaps(data))


def _rows(before: RunData, after: RunData, tolerance: float) -> Iterator[Row]:
    for measure, title in (("ttft", "first token"), ("tpot", "per token"), ("e2e", "whole answer")):
        old, new = (_by_kind(data.records, measure) for data in (before, after))
        if not old and not new:
            continue
        yield _row(
            title,
            "seconds",
            old,
            new,
            lambda a, b: compare(a, b, tolerance=tolerance, confidence=CONFIDENCE),
        )
        if measure == "ttft":
            yield _row(
                "its slow tail",
                "share",
                old,
                new,
                lambda a, b: compare_tails(a, b, tolerance=tolerance, confidence=CONFIDENCE),
            )
    yield _throughput(before, after, tolerance)
    yield _shares("failed", before, after, _is_lost, _is_sent, "lower")
    if any(record.needle for record in before.records):
        yield _shares("recall", before, after, lambda one: one.expected, _has_needle, "higher")


def _row(
    title: str,
    unit: Unit,
    old: dict[str, list[float]],
    new: dict[str, list[float]],
    judge: Callable[[list[float], list[float]], Comparison],
) -> Row:
    """Of several kinds of requests each value counts relative to the median of its kind before: kinds differ by more
    than runs do."""
    scales = {kind: _median(values) for kind, values in old.items() if len(values) >= LEAST}
    kinds = [kind for kind, scale in scales.items() if 0 < scale < math.inf and kind in new]
    found = judge(
        *([value / scales[kind] for kind in kinds for value in one[kind]] for one in (old, new))
    )
    if unit == "share":
        return Row(
            measure=title, unit=unit, before=found.before, after=found.after, comparison=found
        )
    flat = [_finite_median([value for kind in kinds for value in one[kind]]) for one in (old, new)]
    return Row(measure=title, unit=unit, before=flat[0], after=flat[1], comparison=found)


def _by_kind(records: Sequence[RequestRecord], measure: str) -> dict[str, list[float]]:
    """Values by kind of request; a failure is infinitely slow."""
    kinds: dict[str, list[float]] = defaultdict(list)
    for record in records:
        value = math.inf if record.failed else value_of(record, measure)
        if value is not None and not record.cancelled and not unsent(record):
            kinds[_kind(record)].append(value)
    return kinds if any(map(math.isfinite, itertools.chain(*kinds.values()))) else {}


def _kind(record: RequestRecord) -> str:
    if record.needle is not None:
        return f"{record.needle.length} tokens"
    return f"{record.group} {record.name}"


def _throughput(before: RunData, after: RunData, tolerance: float) -> Row:
    windows = min(WINDOWS, *(len(data.records) // PER_WINDOW for data in (before, after)))
    old, new = (_rates(data, windows) for data in (before, after))
    found = compare(old, new, direction="higher", tolerance=tolerance, confidence=CONFIDENCE)
    return Row(
        measure="output",
        unit="tokens/s",
        before=found.before,
        after=found.after,
        comparison=found,
    )


def _rates(data: RunData, windows: int) -> Values | list[float]:
    """Output tokens a second in equal parts of the run; the first and the last are cut by its ends."""
    length = window_seconds(data.records)
    if not length or not windows:
        return []
    start = min(record.t_send for record in data.records)
    return token_rates(data.records, start, length / windows, windows)[1:-1]


def _shares(
    title: str,
    before: RunData,
    after: RunData,
    is_hit: Callable[[RequestRecord], bool],
    counts: Callable[[RequestRecord], bool],
    direction: Direction,
) -> Row:
    pairs = []
    for data in (before, after):
        asked = [record for record in data.records if not record.cancelled and counts(record)]
        pairs.append((sum(map(is_hit, asked)), len(asked)))
    found = compare_shares(pairs[0], pairs[1], direction=direction, confidence=CONFIDENCE)
    return Row(
        measure=title, unit="share", before=found.before, after=found.after, comparison=found,
        is_speed=False,
    )  # fmt: skip


def _is_lost(record: RequestRecord) -> bool:
    return record.failed


def _is_sent(record: RequestRecord) -> bool:
    return not unsent(record)


def _has_needle(record: RequestRecord) -> bool:
    return record.needle is not None and record.needle.depth is not None


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _finite_median(values: list[float]) -> float | None:
    middle = _median(values) if values else math.inf
    return middle if math.isfinite(middle) else None


def _told(value: Any) -> str:
    if value is None or value == "":
        return "none"
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _unsure(row: Row, values: tuple[int, int]) -> str:
    """What a row lacks that cannot tell, of so many values on each side; empty for one that tells."""
    one = row.comparison
    if one.outcome != "too few":
        return ""
    if min(one.before_samples, one.after_samples) < LEAST:
        return _too_few(row, values)
    if row.before is None:
        return "most of the requests before failed: there is no median to hold the others against"
    return _too_wide(one)


def _too_few(row: Row, values: tuple[int, int]) -> str:
    counts = f"{values[0]} and {values[1]} requests"
    if row.unit == "tokens/s":
        return f"{counts}; a rate is made of {PER_WINDOW}, and {LEAST + ENDS} rates a run are the least"
    if min(values) < LEAST:
        return f"{counts}; {LEAST} in each run are the least"
    return f"{counts} of many kinds; each is held against its own, and {LEAST} of a kind in both runs are the least"


def _too_wide(one: Comparison) -> str:
    if one.shift is None or one.shift_low is None or one.shift_high is None:
        return "failures on one side leave the interval without an end"
    half, shift = (one.shift_high - one.shift_low) / 2, abs(one.shift)
    room = shift if shift > one.tolerance else one.tolerance - shift
    if room < one.tolerance / NEAR:
        return "the shift is as large as the tolerance: set another with --tolerance"
    more = math.ceil((half / room) ** 2)  # an interval narrows with the root of the samples
    return f"the interval is too wide for the tolerance: about {max(2, more)} times as many requests may tell"

"""One series of measurements against the same of an earlier run, as a verdict.

Pass: the whole interval of the shift is better than the tolerance. Fail: the test tells a shift for the worse that is
larger; or the slow tail, or the share of failures, grew. Warn: a shift for the worse, sure but tolerated.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kvops.load.statistics.compare import Comparison, compare, compare_shares, compare_tails
from kvops.units import format_ratio
from kvops.verify import words
from kvops.verify.check import Samples
from kvops.verify.verdict import Verdict

TAIL_FROM = 100
"""Values of either run from which the share beyond the old p95 says something."""


@dataclass(frozen=True)
class Judgement:
    verdict: Verdict
    observed: str
    n: int
    """Of the run with fewer."""
    evidence: dict[str, Any] = field(default_factory=dict)


def judge(
    before: Samples, after: Samples, tolerance: float, confidence: float, min_samples: int
) -> Judgement:
    old, new = _values(before), _values(after)
    n = min(len(old), len(new))
    if n < min_samples:
        few = f"{len(old)} values then, {len(new)} now: {min_samples} of either are needed"
        return Judgement("inconclusive", few, n)
    found = compare(
        old, new, direction=before.direction, tolerance=tolerance, confidence=confidence
    )
    lost = compare_shares((before.lost, len(old)), (after.lost, len(new)), confidence=confidence)
    verdict, said = _verdict(found, tolerance), _said(found, before.unit)
    evidence = {"method": "Mann–Whitney, Hodges–Lehmann", **_numbers(found)}
    if before.direction == "lower" and n >= TAIL_FROM:
        tail = compare_tails(old, new, tolerance=tolerance, confidence=confidence)
        evidence["over_old_p95"] = [tail.before, tail.after]
        if tail.outcome == "worse":
            verdict, said = "fail", f"{said}; {_shares(tail)} beyond the p95 of then"
    if lost.outcome == "worse":
        verdict, said = "fail", f"{said}; {_shares(lost)} failed"
    return Judgement(verdict, said, n, evidence)


def pooled(pairs: Sequence[tuple[Samples, Samples]]) -> tuple[Samples, Samples]:
    """Several series as one, then and now: each value as a multiple of the median that its own series had then.

    For series too short to be judged alone, such as a measurement at several lengths. A series without such a
    median is left out.
    """
    then: list[float] = []
    now: list[float] = []
    for before, after in pairs:
        base = _median(_values(before))
        if math.isfinite(base) and base > 0:
            then += [value / base for value in _values(before)]
            now += [value / base for value in _values(after)]
    direction = pairs[0][0].direction
    return (
        Samples.of(then, unit="×", direction=direction),
        Samples.of(now, unit="×", direction=direction),
    )


def middle(samples: Samples) -> str:
    """The median in words."""
    found = _median(_values(samples))
    return words.value(found, samples.unit) if math.isfinite(found) else "a failure"


def _median(values: Sequence[float]) -> float:
    """NaN without values."""
    return statistics.median(values) if values else math.nan


def _values(samples: Samples) -> list[float]:
    """With a failed attempt as the worst value there is."""
    worst = math.inf if samples.direction == "lower" else -math.inf
    return [*samples.values, *[worst] * samples.lost]


def _verdict(found: Comparison, tolerance: float) -> Verdict:
    if found.outcome in ("same", "better"):
        return "pass"
    if found.outcome == "worse":
        return "fail"
    sign = 1 if found.direction == "lower" else -1
    worst = found.shift_high if found.direction == "lower" else found.shift_low
    if worst is not None and sign * worst <= tolerance:
        return "pass"
    sure = found.p_value is not None and found.p_value <= 1 - found.confidence
    tolerated = found.shift is not None and 0 < sign * found.shift <= tolerance
    return "warn" if sure and tolerated else "inconclusive"


def _said(found: Comparison, unit: str) -> str:
    was, now = (_one(value, unit) for value in (found.before, found.after))
    if found.shift is None:
        return f"{now}, {was} then"
    ends = " to ".join(
        "a failure" if end is None else f"{100 * end:+.0f} %"
        for end in (found.shift_low, found.shift_high)
    )
    return f"{now}, {was} then: {100 * found.shift:+.0f} % ({ends})"


def _one(value: float | None, unit: str) -> str:
    return "a failure" if value is None else words.value(value, unit)


def _shares(found: Comparison) -> str:
    return f"{format_ratio(found.after or 0.0)} of values now, {format_ratio(found.before or 0.0)} then,"


def _numbers(found: Comparison) -> dict[str, Any]:
    return {
        "median": [found.before, found.after],
        "values": [found.before_samples, found.after_samples],
        "shift": found.shift,
        "interval": [found.shift_low, found.shift_high],
        "p": found.p_value,
        "cliffs_delta": found.cliffs_delta,
    }

"""A burst over the node's capacity: what it answered meanwhile, and how soon it was its old self again.

In the burst and while its queue is worked off, refusals that say when to come back are right answers; silence, resets
and 5xx are not. Afterwards the median first token must fall back to near the baseline and stay there,
and answers must come nearly as often again: the interval of the rates' ratio decides, not the ratio of a few answers.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from kvops.load.phases import BASELINE, BURST, RECOVERY
from kvops.load.records import RequestRecord
from kvops.load.refusals import STATUSES
from kvops.load.reports.base import RunData, Verdict, failure_lines, verdict
from kvops.load.reports.cells import UNKNOWN, Columns
from kvops.load.reports.doubts import blamed, client_gaps, crowd_notes
from kvops.load.reports.slo import cache_notes
from kvops.load.reports.spread import cells
from kvops.load.statistics import Series, series, value_of
from kvops.units import format_duration, format_ratio

__all__ = [
    "BASELINE",
    "BURST",
    "RECOVERY",
    "body",
    "facts",
    "judge",
    "overloaded",
    "recovered",
    "settled",
    "share_interval",
]

RUN = 5
"""Answers in a row whose median counts: one slow answer is no relapse."""
FLOOR = 0.1
"""Seconds that a first token may always take longer than in the baseline."""
SETTLED = "after recovery"
STRAIN = 2.0
"""So many times the baseline's first token shows that the burst was over capacity."""


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    answered: int
    refused: int
    failed: int
    per_second: float | None
    """Answers, over the time they were asked for."""
    ttft: Series


def judge(data: RunData) -> Verdict:
    found = facts(data)
    failures, phases = failure_lines(data.records), {one.name: one for one in _phases(data)}
    gaps = [
        f"{name}: {phases[name].answered} answers, {RUN} are the least: raise --{name}-seconds"
        for name in (BASELINE, RECOVERY)
        if phases[name].answered < RUN
    ]
    if not found["overloaded"] and not gaps:
        gaps.append("the burst was not over the node's capacity: raise --users")
    if gaps:
        return verdict(failures, [*gaps, *client_gaps(data)])
    slow, unclear = _not_back(data, found["recovered_after"], found["throughput_share"])
    blame, excused = blamed(data, slow)
    failures += blame
    notes = [*cache_notes(data.records), *(crowd_notes(data) if blame else ())]
    return verdict(failures, [*excused, *unclear, *client_gaps(data)], notes, _met(data))


def _not_back(
    data: RunData, back: float | None, share: float | None
) -> tuple[list[str], list[str]]:
    """What is slower than it may be, and what cannot be told."""
    options = data.info.options
    within, slow, unclear = options["recover_within"], [], []
    if back is None or back > within:
        took = "never" if back is None else f"only after {format_duration(back)}"
        slow.append(
            f"the first token was {took} back near its baseline; {format_duration(within)} are allowed"
        )
    if back is not None and share is None:
        unclear.append(
            "the answers after recovery are too few for a rate: raise --recovery-seconds"
        )
    elif share is not None:
        wanted, (low, high) = options["min_throughput"], share_interval(data) or (0.0, math.inf)
        told = f"{_shares(data, share)}, {format_ratio(wanted)} are wanted"
        if high < wanted:
            slow.append(f"it recovered to fewer answers: {told}")
        elif low < wanted:
            unclear.append(
                f"{told}; {_vague(low, high)}: raise --baseline-seconds, --recovery-seconds"
            )
    return slow, unclear


def _vague(low: float, high: float) -> str:
    if math.isinf(high):
        return "too few answers for an interval"
    return f"by so few answers it may be {format_ratio(low)} to {format_ratio(high)}"


def _met(data: RunData) -> list[str]:
    options, (back, share) = data.info.options, recovered(data)
    if back is None or share is None:
        return []
    return [
        f"back at the baseline {format_duration(back)} after the burst, {format_duration(options['recover_within'])} "
        "are allowed",
        f"{_shares(data, share)}, {format_ratio(options['min_throughput'])} are wanted",
    ]


def _shares(data: RunData, share: float) -> str:
    """`80 % of the baseline's throughput (4.90 of 6.14 answers/s, n 12 and 9)`: as the table has them."""
    known = {one.name: one for one in _phases(data)}
    after, before = known[SETTLED], known[BASELINE]
    return (
        f"{format_ratio(share)} of the baseline's throughput ({after.per_second or 0.0:.2f} of "
        f"{before.per_second or 0.0:.2f} answers/s, n {after.answered} and {before.answered})"
    )


def facts(data: RunData) -> dict[str, Any]:
    back, share = recovered(data)
    return {
        "phases": msgspec.to_builtins(_phases(data)),
        "overloaded": overloaded(data),
        "recovered_after": back,
        "throughput_share": share,
        "throughput_interval": share_interval(data),
    }


def body(data: RunData) -> RenderableType:
    table = Columns(("phase", "ok", "refused", "failed", "answers/s", "TTFT p50", "TTFT p95"))
    for one in _phases(data):
        rate = UNKNOWN if one.per_second is None else f"{one.per_second:.2f}"
        table.add(
            one.name, str(one.answered), str(one.refused), str(one.failed), rate, *cells(one.ttft)
        )
    back, share = recovered(data)
    line = (
        "not back at the baseline"
        if back is None
        else f"back at the baseline {format_duration(back)} after the burst"
    )
    if share is not None:
        line += f": {_shares(data, share)}"
    return Group(table, Text(line))


def overloaded(data: RunData) -> bool:
    phases = {one.name: one for one in _phases(data)}
    before, burst = phases[BASELINE].ttft.p50, phases[BURST].ttft.p50
    slower = isinstance(before, float) and isinstance(burst, float) and burst > STRAIN * before
    return bool(phases[BURST].refused) or slower


def recovered(data: RunData) -> tuple[float | None, float | None]:
    """Seconds from the burst's last request until the first token stayed near the baseline, and the share of the
    baseline's answers a second from then on; None: never, or not known.
    """
    burst = [one.t_send for one in data.records if one.name == BURST]
    after, before = _since_settled(data), _answered(data.records, BASELINE)
    if not after or not burst:
        return None, None
    answered = _answered(after, RECOVERY)
    rate, usual = _rate(answered), _rate(before)
    return (
        max(0.0, after[0].t_send - max(burst)),
        rate / usual if rate is not None and usual else None,
    )


def share_interval(data: RunData) -> tuple[float, float] | None:
    """95 % interval of the throughput's share; None where the answers are too few for one.

    Of the ratio of the mean times between two sends, by the delta method on its logarithm, with Student's t.
    """
    from scipy.special import stdtrit

    _, share = recovered(data)
    before, after = (
        np.diff([one.t_send for one in some])
        for some in (
            _answered(data.records, BASELINE),
            _answered(_since_settled(data), RECOVERY),
        )
    )
    if share is None or min(len(before), len(after)) < RUN - 1:
        return None
    parts = [some.var(ddof=1) / some.mean() ** 2 / len(some) for some in (before, after)]
    times = float(stdtrit(min(len(before), len(after)) - 1, 0.975))
    spread = math.exp(times * math.sqrt(sum(parts)))
    return share / spread, share * spread


def _since_settled(data: RunData) -> list[RequestRecord]:
    """Requests from the first on whose first token came as in the baseline, and stayed so; none: it never did."""
    before, after = _answered(data.records, BASELINE), _tried(data.records, RECOVERY)
    if len(before) < RUN or len(after) < RUN:
        return []
    half = statistics.median(value_of(one, "ttft") or 0.0 for one in before)
    limit = max(data.info.options["tolerance"] * half, half + FLOOR)
    told = [value_of(one, "ttft") for one in after]
    waits = [math.inf if one is None else one for one in told]
    start = settled(waits, limit)
    return [] if start is None else after[start:]


def settled(times: Sequence[float], limit: float) -> int | None:
    """Index of the first value within `limit` from which every RUN in a row have a median within it; None: none."""
    found = None
    for index in range(len(times) - RUN, -1, -1):
        if statistics.median(times[index : index + RUN]) > limit:
            break
        if times[index] <= limit:
            found = index
    return found


def _phases(data: RunData) -> list[Phase]:
    """The three of the run, and the part of the last from which on the node was its old self."""
    found = [_phase(data.records, name) for name in (BASELINE, BURST, RECOVERY)]
    after = _since_settled(data)
    if after:
        found.append(msgspec.structs.replace(_phase(after, RECOVERY), name=SETTLED))
    return found


def _phase(records: Sequence[RequestRecord], name: str) -> Phase:
    own = [one for one in records if one.name == name and not one.cancelled]
    answered, failed = _answered(own, name), sum(one.failed for one in own)
    return Phase(
        name=name,
        answered=len(answered),
        refused=sum(one.expected and one.status in STATUSES for one in own),
        failed=failed,
        per_second=_rate(answered),
        ttft=series(
            (wait for one in answered if (wait := value_of(one, "ttft")) is not None), failed
        ),
    )


def _answered(records: Sequence[RequestRecord], name: str) -> list[RequestRecord]:
    own = [one for one in records if one.name == name and one.expected and one.ttft is not None]
    return sorted(own, key=lambda one: one.t_send)


def _tried(records: Sequence[RequestRecord], name: str) -> list[RequestRecord]:
    """Refused ones too: they are no answers, so it has not recovered."""
    own = [one for one in records if one.name == name and not one.cancelled]
    return sorted(own, key=lambda one: one.t_send)


def _rate(answered: Sequence[RequestRecord]) -> float | None:
    if not answered:
        return None
    span = max(one.t_send + one.e2e for one in answered) - min(one.t_send for one in answered)
    return len(answered) / span if span > 0 else None

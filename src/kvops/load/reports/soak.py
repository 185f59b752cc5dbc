"""A steady load for long: does the first token get slower, does memory or the KV cache fill up?

The warm-up is left out by rule; a drift counts when the robust slope's interval holds no zero and the change from the
first quarter to the last is more than is allowed. What grows while others take the machine is not the node's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from kvops.load.records import RequestRecord, ServerSample
from kvops.load.reports.base import RunData, Verdict, verdict
from kvops.load.reports.cells import UNKNOWN, Columns
from kvops.load.reports.doubts import blamed, client_gaps, crowd_notes
from kvops.load.reports.slo import cache_notes, met, slo_reasons, whole_claims
from kvops.load.reports.slo import table as claims_table
from kvops.load.statistics import (
    Trend,
    after_warm_up,
    trend,
    value_of,
    warm_up,
    window_seconds,
)
from kvops.load.statistics.steadiness import CONFIDENCE, LEAST_ANSWERS
from kvops.telemetry.snapshot import Known
from kvops.units import format_duration, format_ratio

WINDOWS = 20
MEMORY = "memory in use"
WAITING = "requests waiting"


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """Of one measure over the run."""

    name: str
    trend: Trend | None
    """None: too few points, or not exposed."""
    change: float | None
    """From start to end: of a time relative to its start, of a share in points of the whole."""
    surest: float | None
    """The least of it that the slope's interval allows."""
    allowed: float
    is_time: bool = False

    @property
    def broken(self) -> bool:
        """Growth only: that it gets faster or smaller is no fault."""
        return self.change is not None and self.change > self.allowed and (self.surest or 0.0) > 0


def judge(data: RunData) -> Verdict:
    options = data.info.options
    failures, gaps = slo_reasons(data)
    found = drifts(data)
    for one in found:
        if one.broken:
            wrong, unclear = _blamed(data, one)
            failures, gaps = [*failures, *wrong], [*gaps, *unclear]
    held = window_seconds(data.records) or 0.0
    if held < options["least_seconds"]:
        gaps.append(
            f"{format_duration(held)} of load say nothing of drift, {format_duration(options['least_seconds'])} "
            f"are the least: --duration {math.ceil(options['least_seconds'])}s, or --least-seconds for a shorter look"
        )
    if found[0].trend is None:
        gaps.append(_too_few(len(_answered(data)), held))
    notes = [*_notes(data), *cache_notes(data.records), *(crowd_notes(data) if failures else ())]
    return verdict(failures, [*gaps, *client_gaps(data)], notes, _met(data, found))


def _too_few(answers: int, held: float) -> str:
    wanted = (
        f": --duration {math.ceil(1.1 * held * LEAST_ANSWERS / answers)}s brings them at this pace"
        if answers
        else ""
    )
    return (
        f"{answers} answers after the warm-up say nothing of a trend of the first token, {LEAST_ANSWERS} are the "
        f"least{wanted}"
    )


def _blamed(data: RunData, one: Drift) -> tuple[list[str], list[str]]:
    if one.is_time or one.name == WAITING:  # a queue grows where the node is slow
        return blamed(data, [_grew(one)])
    if one.name == MEMORY and _shared(data):
        return [], [f"{_grew(one)}; the other processes of the machine are among it"]
    return [_grew(one)], []


def _grew(one: Drift) -> str:
    return (
        f"{one.name} grew by {format_ratio(one.change or 0.0)}, from {' to '.join(_ends(one))}; "
        f"{format_ratio(one.allowed)} are allowed"
    )


def _ends(one: Drift) -> tuple[str, str]:
    """Medians of the first and of the last quarter of the run after the warm-up."""
    if one.trend is None:
        return UNKNOWN, UNKNOWN
    told = format_duration if one.is_time else format_ratio
    return told(one.trend.start), told(one.trend.end)


def _met(data: RunData, found: Sequence[Drift]) -> list[str]:
    return [
        *met(data),
        *(
            f"{one.name} from {' to '.join(_ends(one))}: grew by no more than {format_ratio(one.allowed)}"
            for one in found
            if one.trend is not None
        ),
    ]


def _shared(data: RunData) -> bool:
    """Whether the node's memory is the machine's, in which others, the load generator too, have theirs."""
    seen = data.info.before
    if seen is None or not isinstance(seen.memory, Known):
        return False
    return seen.memory.value.device == "cpu"


def facts(data: RunData) -> dict[str, Any]:
    return {
        "warm_up": msgspec.to_builtins(warm_up(data.records)),
        "drifts": msgspec.to_builtins(drifts(data)),
    }


def body(data: RunData) -> RenderableType:
    table = Columns(
        ("median of the quarter", "first", "last", "change", "allowed", ""), give_up=("allowed",)
    )
    for one in drifts(data):
        shown = UNKNOWN if one.change is None else _signed(one.change)
        table.add(one.name, *_ends(one), shown, format_ratio(one.allowed), _mark(one))
    found = whole_claims(data)
    return Group(table, claims_table(found)) if found else table


def _mark(one: Drift) -> Text:
    if one.change is None:
        return Text("· not known", style="yellow")
    if one.broken:
        return Text("✘ grew", style="red")
    falls = one.change < -one.allowed and (one.surest or 0.0) < 0
    return Text("✔ fell" if falls else "✔ no growth", style="green")


def drifts(data: RunData) -> list[Drift]:
    """The first token's comes first."""
    options = data.info.options
    kept = after_warm_up(data.records, warm_up(data.records))
    start = min((one.t_send for one in kept), default=0.0)
    end = max((one.t_send for one in kept), default=0.0)
    seen = [one for one in data.server if start <= one.at <= end]
    return [
        _latency(kept, options["max_drift"]),
        _part(MEMORY, seen, lambda one: one.memory_used, options["max_growth"]),
        _part("KV blocks in use", seen, lambda one: one.kv_usage, options["max_growth"]),
        _part(WAITING, seen, _waiting, options["max_growth"]),
    ]


def _latency(kept: Sequence[RequestRecord], allowed: float) -> Drift:
    answered = [one for one in kept if one.expected and one.ttft is not None]
    found = None
    if len(answered) >= LEAST_ANSWERS:  # of fewer it is not told either whether the run was steady
        found = trend(
            [one.t_send for one in answered], [value_of(one, "ttft") or 0.0 for one in answered],
            confidence=CONFIDENCE, points=WINDOWS,
        )  # fmt: skip
    return Drift(
        name="time to the first token", trend=found, allowed=allowed, is_time=True,
        change=None if found is None else found.change,
        surest=None if found is None else found.surest_change,
    )  # fmt: skip


def _answered(data: RunData) -> list[RequestRecord]:
    kept = after_warm_up(data.records, warm_up(data.records))
    return [one for one in kept if one.expected and one.ttft is not None]


def _part(
    name: str,
    seen: Sequence[ServerSample],
    of: Callable[[ServerSample], float | None],
    allowed: float,
) -> Drift:
    """Of a reading that is a share already: its change is one of the whole."""
    points = [(one.at, value) for one in seen if (value := of(one)) is not None]
    found = trend(
        [at for at, _ in points], [value for _, value in points], confidence=CONFIDENCE, points=WINDOWS
    )  # fmt: skip
    return Drift(
        name=name, trend=found, allowed=allowed,
        change=None if found is None else found.end - found.start,
        surest=None if found is None else found.surest,
    )  # fmt: skip


def _waiting(one: ServerSample) -> float | None:
    """Share of all requests in the node that wait."""
    if one.waiting is None or one.running is None:
        return None
    whole = one.waiting + one.running
    return one.waiting / whole if whole else 0.0


def _signed(value: float) -> str:
    if abs(value) < 0.0005:
        return format_ratio(0.0)
    return f"{'+' if value > 0 else '-'}{format_ratio(abs(value))}"


def _notes(data: RunData) -> list[str]:
    unseen = [one.name for one in drifts(data)[1:] if one.trend is None]
    return [f"not shown by the node, or too few samples: {', '.join(unseen)}"] if unseen else []

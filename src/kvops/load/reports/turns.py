"""A context that grows turn by turn: how much of what was there already came from the cache, and what a turn costs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import RenderableType

from kvops.load.records import RequestRecord
from kvops.load.reports.base import RunData, Verdict, failure_lines, verdict
from kvops.load.reports.cells import UNKNOWN, Columns
from kvops.load.reports.doubts import client_gaps
from kvops.load.reports.plots import Plot, lines
from kvops.load.reports.spread import cells, number
from kvops.load.statistics import Series, series
from kvops.units import format_ratio, format_whole

TURN = "turn "
LEAST = 5
"""Later turns under which nothing is said of reuse."""


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    turn: int
    answered: int
    prompt_tokens: float | None
    """The mean."""
    reuse: float | None
    """Cached tokens over those of the turn before; None in the first turn, and where the node does not say."""
    ttft: Series


def judge(data: RunData) -> Verdict:
    failures, gaps = failure_lines(data.records), []
    least = data.info.options["min_reuse"]
    reused, context, later = _reused(data.records)
    told = len(_pairs(_later(data.records), _before(data.records)))
    if later < LEAST:
        gaps.append(
            f"{later} later turns were answered, {LEAST} are the least: raise --loops or --turns"
        )
    elif reused is None or told < later:
        gaps.append(
            f"the node reports cached_tokens in the usage of {told} of {later} later turns: reuse cannot be seen"
        )
    elif reused / context < least:
        failures.append(
            f"{format_ratio(reused / context)} of the context of the turn before came from the cache, under the "
            f"wanted {format_ratio(least)}"
        )
    return verdict(failures, [*gaps, *client_gaps(data)], met=_met(reused, context, least))


def _met(reused: int | None, context: int, least: float) -> list[str]:
    if reused is None or not context:
        return []
    return [
        f"{format_ratio(reused / context)} of the context of the turn before came from the cache, "
        f"{format_ratio(least)} are wanted"
    ]


def facts(data: RunData) -> dict[str, Any]:
    reused, context, _ = _reused(data.records)
    return {
        "turns": msgspec.to_builtins(turns(data.records)),
        "reuse": reused / context if reused is not None and context else None,
    }


def body(data: RunData) -> RenderableType:
    table = Columns(("turn", "answered", "prompt", "reused", "TTFT p50", "TTFT p95"))
    for one in turns(data.records):
        tokens = UNKNOWN if one.prompt_tokens is None else format_whole(round(one.prompt_tokens))
        reuse = UNKNOWN if one.reuse is None else format_ratio(one.reuse)
        table.add(str(one.turn), str(one.answered), tokens, reuse, *cells(one.ttft))
    return table


def plots(data: RunData) -> list[Plot]:
    found = turns(data.records)
    numbers: list[float] = [one.turn for one in found]
    times: dict[str, list[float | None]] = {
        "first token p50": [number(one.ttft.p50) for one in found]
    }
    reuse = {"reused": [one.reuse for one in found]}
    return [
        lines("First token by turn", numbers, times, across="turn", up="seconds"),
        lines(
            "Share of the turn before that came from the cache",
            numbers,
            reuse,
            across="turn",
            up="share",
        ),
    ]


def turns(records: Sequence[RequestRecord]) -> list[Turn]:
    by_turn = defaultdict(list)
    before = _before(records)
    for record in records:
        if record.expected:
            by_turn[_number(record)].append(record)
    return [_turn(number, own, before) for number, own in sorted(by_turn.items())]


def _turn(number: int, own: Sequence[RequestRecord], before: dict[int, RequestRecord]) -> Turn:
    pairs = _pairs(own, before)
    known = [one.prompt_tokens for one in own if one.prompt_tokens is not None]
    context = sum(context for _, context in pairs)
    return Turn(
        turn=number,
        answered=len(own),
        prompt_tokens=sum(known) / len(known) if known else None,
        reuse=sum(cached for cached, _ in pairs) / context if context else None,
        ttft=series(one.ttft for one in own if one.ttft is not None),
    )


def _reused(records: Sequence[RequestRecord]) -> tuple[int | None, int, int]:
    """Cached tokens of all later turns, the tokens of the turns before them, and how many later turns there are."""
    later = _later(records)
    pairs = _pairs(later, _before(records))
    context = sum(context for _, context in pairs)
    return (sum(cached for cached, _ in pairs) if context else None), context, len(later)


def _later(records: Sequence[RequestRecord]) -> list[RequestRecord]:
    before = _before(records)
    return [one for one in records if one.expected and one.seq in before]


def _pairs(own: Sequence[RequestRecord], before: dict[int, RequestRecord]) -> list[tuple[int, int]]:
    """Cached tokens of a turn and prompt tokens of the one before it, where the node says both."""
    return [
        (min(one.cached_tokens, previous), previous)
        for one in own
        if one.seq in before
        and one.cached_tokens is not None
        and (previous := before[one.seq].prompt_tokens)
    ]


def _before(records: Sequence[RequestRecord]) -> dict[int, RequestRecord]:
    """The turn before each later one, by the later one's number."""
    loops = {(one.group, _number(one)): one for one in records if one.expected}
    return {
        one.seq: loops[one.group, _number(one) - 1]
        for one in records
        if one.name.startswith(TURN) and (one.group, _number(one) - 1) in loops
    }


def _number(record: RequestRecord) -> int:
    """Of `turn 3`."""
    return int(record.name.rpartition(" ")[2])

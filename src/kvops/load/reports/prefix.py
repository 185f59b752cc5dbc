"""What a shared prefix saves: the share of its tokens that came from the cache, and the first token cold and warm.

A request is warm when another of its group had been answered whole before it was sent, cold when none of its group
had been sent; those between are neither.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from kvops.load.records import RequestRecord
from kvops.load.reports.base import RunData, Verdict, failure_lines, verdict
from kvops.load.reports.cells import UNKNOWN, Columns
from kvops.load.reports.doubts import client_gaps
from kvops.load.reports.spread import cells, finite, ratio
from kvops.load.statistics import Series, series, summarize
from kvops.telemetry.snapshot import Known, NodeSnapshot
from kvops.units import format_ratio

LEAST = 5
"""Answers, warm and cold, under which nothing is said of either; a median takes as many."""
SAME = 0.01
"""Shares that differ by no more are one."""
State = Literal["cold", "warm", "between"]


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    state: State
    answered: int
    prompt_tokens: int
    cached_tokens: int | None
    """None: the node does not report them."""
    ttft: Series

    @property
    def hit_share(self) -> float | None:
        return (
            self.cached_tokens / self.prompt_tokens
            if self.cached_tokens is not None and self.prompt_tokens
            else None
        )


def judge(data: RunData) -> Verdict:
    least = data.info.options["min_hit_share"]
    failures, gaps = failure_lines(data.records), []
    cold, warm = (_kind(data.records, state) for state in ("cold", "warm"))
    if cold.answered < LEAST:
        gaps.append(
            f"{cold.answered} requests were the first of their prefix, {LEAST} are the least that tell how much "
            f"sooner the others are: --groups {LEAST}"
        )
    if warm.answered < LEAST:
        gaps.append(
            f"{warm.answered} requests found a prefix that was there, {LEAST} are the least: raise --prompts"
        )
    elif warm.hit_share is None:
        gaps.append("the node does not report cached_tokens in its usage: hits cannot be seen")
    elif warm.hit_share < least:
        failures.append(
            f"{format_ratio(warm.hit_share)} of the tokens of warm prompts came from the cache, under the wanted "
            f"{format_ratio(least)}: prefix caching is off, or blocks were evicted in between"
        )
    return verdict(failures, [*gaps, *client_gaps(data)], _notes(data), _met(warm, least))


def _met(warm: Kind, least: float) -> list[str]:
    if warm.hit_share is None:
        return []
    return [
        f"{format_ratio(warm.hit_share)} of the tokens of {warm.answered} warm prompts came from the cache, "
        f"{format_ratio(least)} are wanted"
    ]


def facts(data: RunData) -> dict[str, Any]:
    cold, warm = (_kind(data.records, state) for state in ("cold", "warm"))
    return {
        "kinds": [
            msgspec.to_builtins(_kind(data.records, state)) for state in ("cold", "warm", "between")
        ],
        "hit_share": warm.hit_share,
        "ttft_ratio": finite(ratio(cold.ttft.p50, warm.ttft.p50)),
        "server_hit_share": server_share(data),
    }


def body(data: RunData) -> RenderableType:
    table = Columns(("prompts", "answered", "from the cache", "TTFT p50", "TTFT p95"))
    for state in ("cold", "warm", "between"):
        one = _kind(data.records, state)
        if one.answered:
            share = one.hit_share
            shown = UNKNOWN if share is None else format_ratio(share)
            table.add(state, str(one.answered), shown, *cells(one.ttft))
    sooner = facts(data)["ttft_ratio"]
    if sooner is None:
        return table
    return Group(table, Text(f"a warm prompt's first token comes {sooner:.1f} times sooner"))


def states(records: Sequence[RequestRecord]) -> dict[int, State]:
    """By the record's number."""
    groups = defaultdict(list)
    for record in records:
        groups[record.group].append(record)
    return {one.seq: _state(one, group) for group in groups.values() for one in group}


def _state(one: RequestRecord, group: Sequence[RequestRecord]) -> State:
    others = [other for other in group if other.seq != one.seq]
    if any(other.expected and other.t_send + other.e2e <= one.t_send for other in others):
        return "warm"
    return "between" if any(other.t_send <= one.t_send for other in others) else "cold"


def _kind(records: Sequence[RequestRecord], state: State) -> Kind:
    known = states(records)
    own = [one for one in records if known[one.seq] == state and one.expected]
    cached = [one.cached_tokens for one in own]
    return Kind(
        state=state,
        answered=len(own),
        prompt_tokens=sum(one.prompt_tokens or 0 for one in own),
        cached_tokens=None if None in cached else sum(value or 0 for value in cached),
        ttft=series(one.ttft for one in own if one.ttft is not None),
    )


def server_share(data: RunData) -> float | None:
    """Hit tokens over asked ones by the node's own counters, from before the run to after it; None where it does not
    show them, or was started anew in between.
    """
    before, after = _looked_up(data.info.before), _looked_up(data.info.after)
    if before is None or after is None:
        return None
    asked, hit = after[0] - before[0], after[1] - before[1]
    return hit / asked if asked > 0 and hit >= 0 else None


def _looked_up(seen: NodeSnapshot | None) -> tuple[int, int] | None:
    """Tokens looked for in the cache, and those found, since the node's start."""
    if seen is None or not isinstance(seen.prefix_cache, Known):
        return None
    return seen.prefix_cache.value.query_tokens, seen.prefix_cache.value.hit_tokens


def _notes(data: RunData) -> list[str]:
    """Where the node's own count of the same tokens is another one."""
    own, told = server_share(data), summarize(data.records).cached_share
    if own is None or told is None or abs(own - told) <= SAME:
        return []
    return [
        f"the node itself counts {format_ratio(own)} of all prompt tokens as hits, the answers' usage "
        f"{format_ratio(told)}: others used it meanwhile, or requests ended without usage"
    ]

"""First-token time and token gaps by the length of the prompt: no length may cost more than attention predicts."""

from __future__ import annotations

from typing import Any

import msgspec
from rich.console import RenderableType
from rich.text import Text

from kvops.load.records import RequestRecord
from kvops.load.reports.base import RunData, Verdict, failure_lines, verdict
from kvops.load.reports.cells import UNKNOWN, Columns
from kvops.load.reports.doubts import blamed, client_gaps, crowd_notes
from kvops.load.reports.plots import Plot, lines
from kvops.load.reports.slo import cache_notes
from kvops.load.reports.spread import cells, number
from kvops.load.slo import Slo
from kvops.load.statistics import LEAST_SAMPLES, Series, pooled_gaps, series, value_of
from kvops.load.statistics.curves import Step, steps
from kvops.units import format_duration, format_whole


class Row(msgspec.Struct, frozen=True, kw_only=True):
    length: int
    """As asked, tokens."""
    tokens: float | None
    """As the node counted, the mean."""
    failed: int
    ttft: Series
    itl: Series


def judge(data: RunData) -> Verdict:
    options, found = data.info.options, rows(data)
    failures = failure_lines(data.records)
    gaps = [
        f"{row.length} tokens: {row.ttft.samples} answers, a median needs {LEAST_SAMPLES[0.50]}: raise --repeats"
        for row in found
        if row.ttft.p50 is None
    ]
    slow = [_jump(one) for one in growth(data) if one.times > options["max_jump"]]
    bound = Slo.of(options).ttft
    if bound is not None:
        slow += [
            f"{row.length} tokens: the median first token takes {format_duration(half)}, over {format_duration(bound)}"
            for row in found
            if (half := number(row.ttft.p50)) is not None and half > bound
        ]
    blame, excused = blamed(data, slow)
    notes = [*cache_notes(data.records), *(crowd_notes(data) if blame else ())]
    return verdict([*failures, *blame], [*gaps, *excused, *client_gaps(data)], notes, _met(data))


def _met(data: RunData) -> list[str]:
    limit = data.info.options["max_jump"]
    worst = max(growth(data), key=lambda one: one.times, default=None)
    answered = sum(row.ttft.samples for row in rows(data))
    shown = [f"all {answered} documents were answered"]
    if worst is not None:
        shown.append(
            f"no length costs more than {limit:g} times what shorter prompts predict; most at "
            f"{format_whole(round(worst.length))} tokens, {worst.times:.2f} times"
        )
    return shown


def facts(data: RunData) -> dict[str, Any]:
    return {"lengths": msgspec.to_builtins(rows(data)), "growth": msgspec.to_builtins(growth(data))}


def body(data: RunData) -> RenderableType:
    titles = (
        "prompt",
        "counted",
        "TTFT p50",
        "TTFT p95",
        "prompt tok/s",
        "gap p50",
        "grew",
        "may grow",
    )
    table = Columns(titles, give_up=("counted", "TTFT p95", "gap p50"))
    grown = {one.length: one for one in growth(data)}
    limit = data.info.options["max_jump"]
    for row in rows(data):
        p50, p95 = cells(row.ttft)
        one = grown.get(row.tokens or row.length)
        over = one is not None and one.times > limit
        table.add(
            format_whole(row.length), UNKNOWN if row.tokens is None else format_whole(round(row.tokens)), p50, p95,
            _speed(row), cells(row.itl)[0],
            Text(UNKNOWN if one is None else f"{one.grew:.1f}x", style="red" if over else ""),
            UNKNOWN if one is None else f"{one.may_grow * limit:.1f}x",
        )  # fmt: skip
    return table


def plots(data: RunData) -> list[Plot]:
    found, allowed = rows(data), {one.length: one for one in growth(data)}
    limit = data.info.options["max_jump"]
    lengths: list[float] = [row.tokens or row.length for row in found]
    times: dict[str, list[float | None]] = {
        "first token p50": [number(row.ttft.p50) for row in found],
        "may take": [allowed[at].predicted * limit if at in allowed else None for at in lengths],
    }
    return [
        lines(
            "First token by length, and what it may take",
            lengths,
            times,
            across="prompt, tokens",
            up="seconds",
        )
    ]


def rows(data: RunData) -> list[Row]:
    return [_row(data, length) for length in sorted(set(data.info.options["lengths"]))]


def growth(data: RunData) -> list[Step]:
    """Between neighbours in length, as far as their medians are known."""
    points = sorted(
        (row.tokens or row.length, half)
        for row in rows(data)
        if (half := number(row.ttft.p50)) is not None and half > 0
    )
    return steps([length for length, _ in points], [half for _, half in points], 2)


def _row(data: RunData, length: int) -> Row:
    own = [one for one in data.records if one.name == f"{length} tokens" and not one.cancelled]
    good: list[RequestRecord] = [one for one in own if one.expected]
    counted = [one.prompt_tokens for one in good if one.prompt_tokens is not None]
    failed = sum(one.failed for one in own)
    return Row(
        length=length,
        tokens=sum(counted) / len(counted) if counted else None,
        failed=failed,
        ttft=series((wait for one in good if (wait := value_of(one, "ttft")) is not None), failed),
        itl=series(pooled_gaps(good)),
    )


def _speed(row: Row) -> str:
    half = number(row.ttft.p50)
    return UNKNOWN if not half or row.tokens is None else f"{row.tokens / half:.0f}"


def _jump(one: Step) -> str:
    return (
        f"from {one.before:.0f} to {one.length:.0f} tokens the first token takes {one.grew:.1f} times "
        f"as long, and the shorter prompts explain {one.may_grow:.1f} times"
    )

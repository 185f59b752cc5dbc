"""Whether the requests met the objectives: one row an objective, and the share that met all of them at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from kvops.load.records import RequestRecord
from kvops.load.reports.base import RunData, Verdict, failure_lines, once, verdict
from kvops.load.reports.cells import Columns, counted
from kvops.load.reports.doubts import blamed, client_gaps, crowd_notes
from kvops.load.slo import Slo
from kvops.load.statistics import (
    Claim,
    Goodput,
    goodput,
    minimum_samples,
    objectives,
    unsent,
    window_seconds,
)
from kvops.load.statistics.goodput import Marks, all_marks
from kvops.units import format_duration, format_ratio, format_whole

LEAST = 5
MOST_MORE = 100
"""Times as many samples: more are asked of nobody."""
"""Requests under which no share of errors means anything."""
MARKS = {
    "holds": ("✔ met", "green"),
    "refuted": ("✘ broken", "red"),
    "too few": ("· not shown", "yellow"),
}


@once
def whole_marks(data: RunData) -> dict[str, Marks]:
    """Of all requests of the run."""
    return all_marks(data.records, Slo.of(data.info.options))


@once
def whole_claims(data: RunData) -> dict[str, Claim]:
    slo = Slo.of(data.info.options)
    return objectives(data.records, slo, slo.confidence, whole_marks(data))


@once
def whole_goodput(data: RunData) -> Goodput:
    return goodput(data.records, Slo.of(data.info.options), whole_marks(data))


def judge(data: RunData) -> Verdict:
    failures, gaps = slo_reasons(data)
    notes = [*cache_notes(data.records), *(crowd_notes(data) if failures else ())]
    return verdict(failures, [*gaps, *client_gaps(data)], notes, met(data))


def facts(data: RunData) -> dict[str, Any]:
    return {
        "claims": msgspec.to_builtins(whole_claims(data)),
        "errors": error_share(data.records),
        "goodput": msgspec.to_builtins(whole_goodput(data)),
    }


def body(data: RunData) -> RenderableType:
    good = whole_goodput(data)
    line = f"{good.good} of {good.attempted} requests met every objective at once"
    if good.per_second is not None:
        line += f": goodput {good.per_second:.2f} requests/s"
    return Group(table(whole_claims(data)), Text(line))


def claims(records: Sequence[RequestRecord], slo: Slo) -> dict[str, Claim]:
    return objectives(records, slo, slo.confidence)


def table(found: Mapping[str, Claim]) -> RenderableType:
    rows = Columns(("objective", "within", "n", "over it", "needs", ""), give_up=("needs", "n"))
    for name, one in found.items():
        glyph, style = MARKS[one.outcome]
        rows.add(
            title(name, one), format_duration(one.bound), format_whole(one.samples), format_whole(one.over),
            format_whole(one.needed), Text(glyph, style=style),
        )  # fmt: skip
    return rows


def more(data: RunData, one: Claim) -> str:
    """How long a run would bring the samples that a claim lacks; empty for a run without a time bound."""
    window = window_seconds(data.records)
    if not window or data.info.duration is None:
        return ""
    return longer(one, "--duration", window)


def longer(one: Claim, option: str, seconds: float) -> str:
    """What to set `option` to, when `seconds` brought so many samples and as many of them stay over the bound."""
    if not one.samples:
        return f": raise {option}"
    wanted, before = one.needed, 0
    while before < wanted <= MOST_MORE * one.samples:
        before, over = wanted, one.over * wanted / one.samples
        wanted = max(wanted, minimum_samples(one.share, round(over), one.confidence))
    if wanted > MOST_MORE * one.samples:
        return f"; too near to {format_ratio(1 - one.share)} over it for any run to tell: move the bound"
    return f": {option} {math.ceil(1.1 * wanted * seconds / one.samples)}s brings them at this pace"


def title(measure: str, one: Claim) -> str:
    return f"{measure.upper()} p{100 * one.share:g}"


def words(measure: str, one: Claim) -> str:
    """`TTFT p95 within 2.00 s: refuted with 95% confidence (7 of 60 over it)`."""
    return f"{title(measure, one)} within {format_duration(one.bound)}: {one}"


def slo_reasons(data: RunData) -> tuple[list[str], list[str]]:
    """What is broken, and what could not be judged. The run's options hold the objectives and `max_errors`."""
    found, records, options = whole_claims(data), data.records, data.info.options
    slow = [words(name, one) for name, one in found.items() if one.outcome == "refuted"]
    failures, gaps = blamed(data, slow)
    gaps += [
        f"{words(name, one)}{more(data, one)}"
        for name, one in found.items()
        if one.outcome == "too few"
    ]
    errors = too_many_errors(records, options.get("max_errors", 0.0))
    if errors is not None:
        failures += [errors, *failure_lines(records)]
    ended = sum(not record.cancelled and not unsent(record) for record in records)
    if ended < LEAST:
        gaps.append(
            f"{counted(ended, 'request')} came to an end, {LEAST} are the least: raise --duration"
        )
    return failures, gaps


def met(data: RunData) -> list[str]:
    """The objectives that were shown, and the errors that were no more than may be."""
    most, share = data.info.options.get("max_errors", 0.0), error_share(data.records)
    found = whole_claims(data).items()
    shown = [words(name, one) for name, one in found if one.outcome == "holds"]
    if share is not None:
        shown.append(f"{format_ratio(share)} of the requests failed, {format_ratio(most)} may")
    return shown


def error_share(records: Sequence[RequestRecord]) -> float | None:
    """Failed over all that was sent and came to an end; None without any."""
    kept = [record for record in records if not record.cancelled and not unsent(record)]
    return sum(record.failed for record in kept) / len(kept) if kept else None


def too_many_errors(records: Sequence[RequestRecord], most: float) -> str | None:
    share = error_share(records)
    if share is None or share <= most:
        return None
    return f"{format_ratio(share)} of the requests failed, over the {format_ratio(most)} that may"


def cache_notes(records: Sequence[RequestRecord]) -> list[str]:
    """Distinct prompts that a prefix cache answered all the same: the times flatter. Later turns may hit."""
    first = [record for record in records if record.expected and record.asked_input is not None]
    good = [record for record in first if record.cached_tokens is not None]
    cached, asked = (
        sum(record.cached_tokens or 0 for record in good),
        sum(record.prompt_tokens or 0 for record in good),
    )
    if not asked or cached / asked < 0.5:
        return []
    share = format_ratio(cached / asked)
    return [
        f"{share} of the prompt tokens came from the prefix cache though no two prompts are alike: "
        "was this seed run before?"
    ]

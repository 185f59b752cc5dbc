"""Whether the requests met the objectives: one row an objective, and the share that met all of them at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from kvops.load.records import RequestRecord
from kvops.load.reports.base import RunData, Verdict, failure_lines, once, verdict
from kvops.load.reports.cells import Columns
from kvops.load.slo import Slo
from kvops.load.statistics import Claim, Goodput, client_health, goodput, objectives
from kvops.units import format_duration, format_ratio, format_whole

LEAST = 5
"""Requests under which no share of errors means anything."""
MARKS = {
    "holds": ("✔ met", "green"),
    "refuted": ("✘ broken", "red"),
    "too few": ("· not shown", "yellow"),
}


@once
def whole_claims(data: RunData) -> dict[str, Claim]:
    """Of all requests of the run."""
    return claims(data.records, Slo.of(data.info.options))


@once
def whole_goodput(data: RunData) -> Goodput:
    return goodput(data.records, Slo.of(data.info.options))


def judge(data: RunData) -> Verdict:
    failures, gaps = slo_reasons(data)
    return verdict(failures, [*gaps, *client_gaps(data)], cache_notes(data.records))


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


def title(measure: str, one: Claim) -> str:
    return f"{measure.upper()} p{100 * one.share:g}"


def words(measure: str, one: Claim) -> str:
    """`TTFT p95 within 2.00 s: refuted with 95% confidence (7 of 60 over it)`."""
    return f"{title(measure, one)} within {format_duration(one.bound)}: {one}"


def slo_reasons(data: RunData) -> tuple[list[str], list[str]]:
    """What is broken, and what could not be judged. The run's options hold the objectives and `max_errors`."""
    found, records, options = whole_claims(data), data.records, data.info.options
    failures = [words(name, one) for name, one in found.items() if one.outcome == "refuted"]
    gaps = [words(name, one) for name, one in found.items() if one.outcome == "too few"]
    errors = too_many_errors(records, options.get("max_errors", 0.0))
    if errors is not None:
        failures += [errors, *failure_lines(records)]
    ended = sum(not record.cancelled for record in records)
    if ended < LEAST:
        gaps.append(f"{ended} requests came to an end, {LEAST} are the least: raise --duration")
    return failures, gaps


def error_share(records: Sequence[RequestRecord]) -> float | None:
    """Failed over all that came to an end; None without any."""
    kept = [record for record in records if not record.cancelled]
    return sum(record.failed for record in kept) / len(kept) if kept else None


def too_many_errors(records: Sequence[RequestRecord], most: float) -> str | None:
    share = error_share(records)
    if share is None or share <= most:
        return None
    return f"{format_ratio(share)} of the requests failed, over the {format_ratio(most)} that may"


def client_gaps(data: RunData) -> list[str]:
    """Why the client's own times cannot be trusted."""
    doubt = client_health(data.client, data.records).doubt
    return [] if doubt is None else [f"the client was the bottleneck: {doubt}"]


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

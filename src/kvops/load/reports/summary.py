"""A whole run for a reader or a program: its own report, the numbers every run has, and the verdict."""

from __future__ import annotations

import time
from typing import Any, cast

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from kvops.load.reports import injection, plain, ramp, recall
from kvops.load.reports.base import Report, RunData, Verdict, verdict
from kvops.load.reports.cells import UNKNOWN, Columns, seconds
from kvops.load.statistics import Series, Summary, saturation, summarize
from kvops.units import format_duration, format_whole

REPORTS = cast(
    "dict[str, Report]", {"recall": recall, "injection": injection, "ramp": ramp, "plain": plain}
)
STYLES = {"pass": "bold green", "fail": "bold red", "inconclusive": "bold yellow"}


def judge(data: RunData) -> Verdict:
    """The report's own verdict; a run that did not come to its end can still fail, but not pass."""
    early = _early(data)
    if not any(not record.cancelled for record in data.records):
        return verdict([], [*early, "no request was answered: there is nothing to judge"])
    own = REPORTS[data.info.report].judge(data)
    if not early:
        return own
    failures = own.reasons if own.outcome == "fail" else ()
    return verdict(failures, [*early, *(own.reasons if not failures else ())], own.notes)


def _early(data: RunData) -> list[str]:
    match data.info.status:
        case "finished":
            return []
        case "interrupted":
            return ["interrupted: the results are partial"]
        case "failed":
            return [f"the run broke: {data.info.reason}"]
        case "running":
            return ["the run never ended"]


def as_json(data: RunData) -> dict[str, Any]:
    return {
        "run": msgspec.to_builtins(data.info),
        "folder": str(data.folder),
        "verdict": msgspec.to_builtins(judge(data)),
        "summary": msgspec.to_builtins(summarize(data.records)),
        "report": REPORTS[data.info.report].facts(data) if data.records else {},
        "client_saturated": saturation(data.client),
    }


def render(data: RunData) -> RenderableType:
    parts: list[RenderableType] = [_head(data)]
    if data.records:
        parts += [REPORTS[data.info.report].body(data), _numbers(summarize(data.records))]
    return Group(*parts, _verdict(data))


def _head(data: RunData) -> Text:
    info = data.info
    took = (
        ""
        if info.finished_at is None
        else f", {format_duration(info.finished_at - info.started_at)}"
    )
    users = "user" if info.users == 1 else "users"
    started = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(info.started_at))
    text = Text(f"{info.scenario}", style="bold")
    text.append(f"  {info.model} at {info.target}\n", style="not bold")
    return text.append(
        f"{started}{took}, {info.users} {users}, seed {info.seed}, {info.status}", "dim"
    )


def _numbers(total: Summary) -> RenderableType:
    failed = f"{total.failed} failed" + (
        f", {total.cancelled} cut off at the end" if total.cancelled else ""
    )
    title = f"{total.requests} requests, {total.succeeded} as expected, {failed}\n{_tokens(total)}"
    titles = ("", "p50", "p95", "p99", "max", "n", "p95+failed")
    table = Columns(titles, give_up=("p95+failed", "p99", "max"))
    _series(table, "first token", total.ttft)
    _series(table, "delta gap", total.itl)
    _series(table, "per token", total.tpot)
    _series(table, "whole", total.e2e)
    return Group(Text(title), table)


def _series(table: Columns, title: str, one: Series) -> None:
    table.add(
        title,
        seconds(one.p50, 0.50),
        seconds(one.p95, 0.95),
        seconds(one.p99, 0.99),
        UNKNOWN if one.max is None else format_duration(one.max),
        format_whole(one.samples),
        seconds(one.p95_with_failures, 0.95),
    )


def _tokens(total: Summary) -> str:
    rate = total.output_tokens_per_second
    prompt, cached, output = map(
        format_whole, (total.prompt_tokens, total.cached_tokens, total.output_tokens)
    )
    text = f"{prompt} prompt ({cached} cached) + {output} output tokens"
    text += "" if rate is None else f", {rate:.1f} output tok/s"
    return text + (f"; {total.without_usage} answers without usage" if total.without_usage else "")


def _verdict(data: RunData) -> Text:
    found = judge(data)
    text = Text(found.outcome.upper(), style=STYLES[found.outcome])
    for line in found.reasons:
        text.append(f"\n  {line}", style="not bold")
    busy = saturation(data.client)
    notes = [
        *found.notes,
        *(
            [f"client-side times are doubtful: {busy}"]
            if busy and busy not in found.reasons
            else []
        ),
    ]
    for line in notes:
        text.append(f"\n  note: {line}", style="dim")
    return text

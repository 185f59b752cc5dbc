"""A whole run for a reader or a program: its own report, the numbers every run has, and the verdict."""

from __future__ import annotations

import time
from typing import Any, cast

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from kvops.load.reports import (
    batch,
    disconnect,
    fairness,
    injection,
    knee,
    lengths,
    plain,
    prefix,
    ramp,
    recall,
    recovery,
    slo,
    soak,
    turns,
    words,
)
from kvops.load.reports.analysis import UNSEEN, Analysis, basis, examine
from kvops.load.reports.base import Report, RunData, Verdict, verdict
from kvops.load.reports.cells import UNKNOWN, Columns, counted, seconds
from kvops.load.reports.document import Document
from kvops.load.reports.document import as_json as document_json
from kvops.load.reports.doubts import book_gaps, unsent_gaps
from kvops.load.slo import Slo
from kvops.load.statistics import Series, Summary
from kvops.load.statistics.goodput import overdue
from kvops.units import format_duration, format_whole

REPORTS = cast("dict[str, Report]", {
    "recall": recall, "injection": injection, "ramp": ramp, "plain": plain, "knee": knee, "slo": slo, "batch": batch,
    "lengths": lengths, "fairness": fairness, "prefix": prefix, "turns": turns, "soak": soak, "recovery": recovery,
    "disconnect": disconnect,
})  # fmt: skip
VISIBLE = 1.05
STYLES = {"pass": "bold green", "fail": "bold red", "inconclusive": "bold yellow"}


def judge(data: RunData) -> Verdict:
    """The report's own verdict; a run that did not come to its end can still fail, but not pass.

    Of a run without an answer it is asked only where requests waited for longer than they should.
    """
    early = [*_early(data), *(f"partial: {line}" for line in data.damage)]
    early += [*book_gaps(data), *unsent_gaps(data)]
    if all(record.cancelled for record in data.records):
        early.append("no request was answered: there is nothing to judge")
        if not _kept_waiting(data):
            return verdict([], early)
    own = REPORTS[data.info.report].judge(data)
    if not data.client:
        own = msgspec.structs.replace(own, notes=(*own.notes, f"the load generator: {UNSEEN}"))
    if not early:
        return own
    failures = own.reasons if own.outcome == "fail" else ()
    return verdict(failures, [*early, *(own.reasons if not failures else ())], own.notes)


def _kept_waiting(data: RunData) -> bool:
    """Whether a request that the run's end cut off was over an objective by then."""
    bounds = Slo.of(data.info.options).bounds().items()
    return any(overdue(record, *bound) for record in data.records for bound in bounds)


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


def analyse(data: RunData) -> Analysis:
    return examine(data, judge(data))


def as_json(data: RunData) -> dict[str, Any]:
    return told(data, analyse(data))


def told(data: RunData, found: Analysis) -> dict[str, Any]:
    """For a program. `report` is the scenario's own part."""
    document = Document(
        **msgspec.structs.asdict(found), run=data.info, folder=str(data.folder), damage=data.damage,
        report=REPORTS[data.info.report].facts(data) if data.records else {},
        client_saturated=found.client.doubt,
    )  # fmt: skip
    plain: dict[str, Any] = document_json(document)
    return plain


def render(data: RunData) -> RenderableType:
    return shown(data, analyse(data))


def shown(data: RunData, found: Analysis) -> RenderableType:
    """For a terminal."""
    parts: list[RenderableType] = [_head(data)]
    if data.records:
        parts += [REPORTS[data.info.report].body(data), _numbers(data, found), _basis(found)]
    return Group(*parts, _verdict(found))


def _head(data: RunData) -> Text:
    info = data.info
    took = f", {words.took(info)}" if info.finished_at is not None else ""
    started = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(info.started_at))
    text = Text(f"{info.scenario}", style="bold")
    text.append(f"  {info.model} at {info.target}\n", style="not bold")
    return text.append(
        f"{started}{took}, {words.load(info)}, seed {info.seed}, {info.status}", "dim"
    )


def _numbers(data: RunData, found: Analysis) -> RenderableType:
    total = found.summary
    cut_off = getattr(REPORTS[data.info.report], "CANCELLED", "cut off by the end of the run")
    failed = f"{total.failed} failed" + (
        f", {total.cancelled} {cut_off}" if total.cancelled else ""
    )
    title = f"{counted(total.requests, 'request')}, {total.succeeded} as expected, {failed}\n{_tokens(total)}"
    titles = ("", "p50", "p95", "p99", "max", "n", "p95+failed")
    table = Columns(titles, give_up=("p95+failed", "p99", "max"))
    _series(table, "first token", total.ttft)
    if total.scheduled_ttft.samples and found.client.lateness.samples:
        _series(table, "as scheduled", total.scheduled_ttft)
    elif _differ(total.ttft, total.scheduled_ttft):
        _series(table, "with connect", total.scheduled_ttft)
    _series(table, "delta gap", total.itl)
    _series(table, "per token", total.tpot)
    _series(table, "whole", total.e2e)
    if found.typical is not None:
        _series(table, "first, warm", found.typical.ttft)
    return Group(Text(title), table)


def _differ(first: Series, whole: Series) -> bool:
    """Whether the time to connect, which objectives count, is so long that it shows."""
    pairs = ((first.p50, whole.p50), (first.p95, whole.p95), (first.max, whole.max))
    return any(isinstance(a, float) and isinstance(b, float) and b > VISIBLE * a for a, b in pairs)


def _basis(found: Analysis) -> Text:
    return Text("\n".join(basis(found)), style="dim")


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


def _verdict(found: Analysis) -> Text:
    verdict = found.verdict
    text = Text(verdict.outcome.upper(), style=STYLES[verdict.outcome])
    for line in verdict.reasons:
        text.append(f"\n  {line}", style="not bold")
    for line in verdict.met:
        text.append(f"\n  {line}", style="not bold")
    for line in verdict.notes:
        text.append(f"\n  note: {line}", style="dim")
    return text

"""The largest load that met the objectives, and which limit the next one hit."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from kvops.load.knee import Search, contradictions, first_bad, knee, unsteady
from kvops.load.knee_step import Aims, Limit, Pressure, Step, measure, pressure
from kvops.load.records import ClientSample, RequestRecord
from kvops.load.reports.base import RunData, Verdict, verdict
from kvops.load.reports.cells import UNKNOWN, Columns, counted
from kvops.load.reports.plots import Plot, lines
from kvops.load.reports.slo import cache_notes, words
from kvops.load.reports.spread import cells, number
from kvops.load.statistics import (
    Series,
    crowd,
    pooled_gaps,
    saturation,
    series,
    tokens_between,
    unsent,
    value_of,
)
from kvops.units import format_ratio

STYLES = {"good": ("✔ good", "green"), "bad": ("✘ bad", "red"), "unclear": ("· unclear", "yellow")}
LIMITS = {
    Limit.TTFT: "the time to the first token",
    Limit.ITL: "the gaps between tokens",
    Limit.TPOT: "the time per token",
    Limit.E2E: "the time to the whole answer",
    Limit.ERRORS: "errors",
    Limit.QUEUE: "the queue, which refuses or gives up what waits",
    Limit.KV: "the KV cache, which is full",
    Limit.CLIENT: "the load generator itself",
}


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A step with what was seen of it."""

    step: Step
    ttft: Series
    itl: Series
    output_tokens_per_second: float | None
    pressure: Pressure
    client: str | None
    """Why this step says nothing of the node: the client, or others on the machine, were in its way."""


def judge(data: RunData) -> Verdict:
    held, options = steps(data), data.info.options
    unit, found = options["by"], facts(data)
    failures, gaps = [], _gaps(data, held)
    over = _search(data, held).next() is None
    if over and found["knee"] is None and found["first_bad"] is not None:
        failures.append(
            f"even {load_words(found['first_bad'], unit)} did not meet the objectives: {found['bound']}"
        )
    wanted = options["wanted"]
    if wanted is not None and found["first_bad"] is not None and found["first_bad"] <= wanted:
        failures.append(f"{load_words(wanted, unit)} were wanted: {found['bound']}")
    if wanted is not None and found["knee"] is not None and found["knee"] >= wanted:
        gaps = []
    elif found["knee"] is not None and found["first_bad"] is None:
        gaps.append(
            f"no load up to {load_words(found['knee'], unit)} missed an objective: raise --most"
        )
    notes = [*_notes(data, held), *cache_notes(data.records)]
    return verdict(failures, gaps, notes, [_headline(data)])


def facts(data: RunData) -> dict[str, Any]:
    held = steps(data)
    search = _search(data, held)
    bad = first_bad(search.tried)
    by = next(
        (one.step for one in held if one.step.load == bad and one.step.outcome == "bad"), None
    )
    return {
        "by": data.info.options["by"],
        "knee": knee(search.tried),
        "first_bad": bad,
        "limits": [str(limit) for limit in by.limits] if by is not None else [],
        "bound": _bound(by, held) if by is not None else None,
        "contradictions": contradictions(search.tried),
        "steps": msgspec.to_builtins(held),
    }


def body(data: RunData) -> RenderableType:
    unit = data.info.options["by"]
    titles = (
        "load",
        "",
        "ok",
        "failed",
        "TTFT p50",
        "TTFT p95",
        "gap p95",
        "tok/s",
        "KV",
        "waiting",
    )
    table = Columns(titles, give_up=("waiting", "KV", "TTFT p50", "gap p95"))
    tried: Counter[float] = Counter()
    for one in steps(data):
        tried[one.step.load] += 1
        again = ", again" if tried[one.step.load] > 1 else ""
        name = load_words(one.step.load, unit) + again
        glyph, style = STYLES[one.step.outcome]
        kv, waiting = one.pressure.kv_usage, one.pressure.waiting
        rate = one.output_tokens_per_second
        table.add(
            name, Text(glyph, style=style), str(one.step.requests - one.step.failed),
            str(one.step.failed), *cells(one.ttft), cells(one.itl)[1], UNKNOWN if rate is None else f"{rate:.1f}",
            UNKNOWN if kv is None else format_ratio(kv), UNKNOWN if waiting is None else str(waiting),
        )  # fmt: skip
    return Group(table, Text(_headline(data), style="bold"))


def plots(data: RunData) -> list[Plot]:
    # Of a load that was tried again, the last time: a line has one value at each place.
    last = {one.step.load: one for one in steps(data)}
    held = [last[load] for load in sorted(last)]
    across = "users" if data.info.options["by"] == "users" else "requests/s"
    loads = [one.step.load for one in held]
    times: dict[str, list[float | None]] = {
        "first token p50": [number(one.ttft.p50_with_failures) for one in held],
        "first token p95": [number(one.ttft.p95_with_failures) for one in held],
        "token gap p95": [number(one.itl.p95) for one in held],
    }
    rates = {"output tokens/s": [one.output_tokens_per_second for one in held]}
    return [
        lines("Latency over load", loads, times, across=across, up="seconds"),
        lines("Throughput over load", loads, rates, across=across, up="tokens/s"),
    ]


def load_words(load: float, unit: str) -> str:
    return f"{load:g} requests/s" if unit == "rate" else f"{load:g} user{'' if load == 1 else 's'}"


def steps(data: RunData) -> list[Held]:
    """In the order in which they were tried; one that the run's end cut short is left out."""
    groups = defaultdict(list)
    for record in data.records:
        groups[int(record.group or 0)].append(record)
    ordered = [groups[number] for number in sorted(groups)]
    if data.info.status != "finished" and ordered and any(one.cancelled for one in ordered[-1]):
        ordered.pop()
    return [_held(data, own) for own in ordered]


def _held(data: RunData, own: Sequence[RequestRecord]) -> Held:
    start, end = min(one.t_send for one in own), max(one.t_send + one.e2e for one in own)
    aims = Aims.of(data.info.options)
    seen = pressure(data.server, start, end)
    step = measure(float(own[0].name.split()[0]), own, aims, seen)
    client = _doubt([one for one in data.client if start <= one.at <= end + 1], own, step)
    if client is not None:
        step = msgspec.structs.replace(step, outcome="unclear", limits=(Limit.CLIENT,))
    good = [one for one in own if one.expected]
    return Held(
        step=step,
        ttft=series(
            (wait for one in good if (wait := value_of(one, "ttft")) is not None), step.failed
        ),
        itl=series(pooled_gaps(good)),
        output_tokens_per_second=tokens_between(good, start, end) / (end - start)
        if end > start
        else None,
        pressure=seen,
        client=client,
    )


def _doubt(samples: Sequence[ClientSample], own: Sequence[RequestRecord], step: Step) -> str | None:
    """Others that took the CPUs explain what was missed; what was met was met in spite of them."""
    busy = saturation(samples)
    if busy is None and (left := sum(map(unsent, own))):
        busy = f"{counted(left, 'request')} had no room at the client"
    if busy is not None:
        return f"the client was the bottleneck: {busy}"
    return crowd(samples) if step.outcome == "bad" and not step.failed else None


def _search(data: RunData, held: Sequence[Held]) -> Search:
    found = Search.of(data.info.options)
    for one in held:
        found.take(one.step.load, one.step.outcome)
    return found


def _gaps(data: RunData, held: Sequence[Held]) -> list[str]:
    gaps = [
        f"{load_words(one.step.load, data.info.options['by'])}: {one.client}"
        for one in held
        if one.client is not None
    ]
    least = Aims.of(data.info.options).least
    gaps += [
        f"{load_words(one.step.load, data.info.options['by'])}: {counted(one.step.requests, 'request')} decide "
        f"nothing, {least} are the least: raise --step-seconds{_to(data, one, least)}"
        for one in held
        if one.step.outcome == "unclear" and one.client is None
    ]
    gaps += [
        f"not monotone: {low:g} was bad and {high:g} was good: the node or the machine is unsteady, run it again"
        for low, high in contradictions(_search(data, held).tried)[:1]
    ]
    left = _search(data, held).next()
    if left is not None:
        unit = data.info.options["by"]
        gaps.append(
            f"the run ended before {load_words(left, unit)} could be tried: raise --duration"
        )
    return gaps


def _to(data: RunData, one: Held, least: int) -> str:
    """So long a step brings as many requests; empty where it had them and they were near the bound."""
    if not 0 < one.step.requests < least:
        return ""
    held: float = data.info.options["step_seconds"]
    return f" to {math.ceil(1.1 * held * least / one.step.requests)}s"


def _notes(data: RunData, held: Sequence[Held]) -> list[str]:
    return [
        f"{load:g} was bad once and good once: the node or the machine is unsteady"
        for load in unsteady(_search(data, held).tried)
    ]


def _bound(step: Step, held: Sequence[Held]) -> str:
    """`8 users hit the time to the first token: TTFT p95 within 2 s: refuted …`."""
    limit = step.limits[0] if step.limits else Limit.ERRORS
    seen = next(one.pressure for one in held if one.step is step)
    reasons = [words(name, one) for name, one in step.claims.items() if one.outcome != "holds"]
    if step.failed:
        reasons.append(f"{step.failed} of {step.requests} requests failed")
    if limit is Limit.KV:
        usage = UNKNOWN if seen.kv_usage is None else format_ratio(seen.kv_usage)
        reasons.append(f"KV cache in use {usage}, {seen.preemptions or 0} preemptions")
    elif seen.waiting:
        reasons.append(f"{seen.running} ran at once and up to {seen.waiting} waited")
    return f"at {step.load:g} the limit is {LIMITS[limit]} ({'; '.join(reasons)})"


def _headline(data: RunData) -> str:
    found = facts(data)
    if found["knee"] is None:
        return "no load is known to meet the objectives"
    knee_words = load_words(found["knee"], found["by"])
    if found["bound"] is None:
        tried = any(one.step.load > found["knee"] for one in steps(data))
        larger = "of the larger loads none was found bad" if tried else "no larger load was tried"
        return f"{knee_words} meet the objectives; {larger}"
    return f"{knee_words} meet the objectives; {found['bound']}"

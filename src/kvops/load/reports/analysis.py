"""What is worked out of every run, whatever its scenario, and what its verdict rests on."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from kvops.load.reports.base import RunData, Verdict
from kvops.load.reports.doubts import books, health
from kvops.load.reports.slo import whole_claims, whole_goodput
from kvops.load.slo import Slo
from kvops.load.statistics import (
    LAG_BOUND,
    Claim,
    ClientHealth,
    Goodput,
    Ledger,
    Steadiness,
    Summary,
    TokenCheck,
    WarmUp,
    after_warm_up,
    steadiness,
    summarize,
    token_check,
    warm_up,
)
from kvops.units import format_duration, format_ratio

CHANGING = frozenset({
    "ramp", "burst", "trace", "knee", "recovery", "turns", "injection", "fairness", "disconnect",
    "lengths", "prefix",
})  # fmt: skip
"""Pacings, and reports, of runs whose load changes by design: they have no steady state to look for."""

IN_PARTS = frozenset({"knee", "fairness", "lengths"})
"""Reports that hold parts of a run to the objectives, each for itself: nothing is claimed of the whole."""

UNSEEN = "it left no samples of itself, as in a run of a second or two: whether it was the bottleneck is not known"


class Analysis(msgspec.Struct, frozen=True, kw_only=True):
    verdict: Verdict
    summary: Summary
    """Of all requests."""
    warm_up: WarmUp
    steadiness: Steadiness
    typical: Summary | None
    """Of the requests after the warm-up; None where none was found."""
    goodput: Goodput | None
    """None: the scenario has no objectives."""
    objectives: dict[str, Claim]
    """By measure: what may be claimed, with confidence."""
    client: ClientHealth
    ledger: Ledger
    tokens: TokenCheck


def examine(data: RunData, verdict: Verdict) -> Analysis:
    has_objectives = data.info.report not in IN_PARTS and bool(Slo.of(data.info.options).bounds())
    start, steady = _steadiness(data)
    return Analysis(
        verdict=verdict,
        summary=summarize(data.records),
        warm_up=start,
        steadiness=steady,
        typical=summarize(after_warm_up(data.records, start)) if start.dropped else None,
        goodput=whole_goodput(data) if has_objectives else None,
        objectives=whole_claims(data) if has_objectives else {},
        client=health(data),
        ledger=books(data),
        tokens=token_check(data.records),
    )


def _steadiness(data: RunData) -> tuple[WarmUp, Steadiness]:
    if {data.info.pacing.kind, data.info.report} & CHANGING:
        why = "the load changes by design"
        start = WarmUp(until=None, dropped=0, share=0.0, statement=f"{why}: no warm-up is left out")
        return start, Steadiness(steady=None, statement=f"{why}: it has no steady state")
    start = warm_up(data.records)
    return start, steadiness(after_warm_up(data.records, start))


def basis(found: Analysis) -> list[str]:
    """What the numbers rest on, one sentence each."""
    return [
        *_steady_lines(found),
        _ledger(found.ledger),
        *_tokens(found),
        *_client(found.client),
    ]


def _ledger(found: Ledger) -> str:
    wrong = "it does not add up: " if found.outcome == "differs" else ""
    return f"ledger: {wrong}{found.statement}"


def _steady_lines(found: Analysis) -> list[str]:
    both = (found.warm_up.statement, found.steadiness.statement)
    return [both[0]] if both[0].split(":")[0] == both[1].split(":")[0] else list(both)


def _tokens(found: Analysis) -> Iterator[str]:
    tokens, cached = found.tokens, found.summary.cached_share
    if tokens.compared:
        agree = tokens.compared - tokens.differ
        yield f"tokens: usage and text agree in {agree} of {tokens.compared} answers{_off(tokens)}"
    if cached is not None:
        yield f"cache: {format_ratio(cached)} of the prompt tokens came from the prefix cache"


def _off(tokens: TokenCheck) -> str:
    if not tokens.differ or tokens.bias is None:
        return ""
    share = f"{format_ratio(abs(tokens.bias))} {'fewer' if tokens.bias < 0 else 'more'}"
    if tokens.biased:
        return f", and text has {share}: usage is wrong, see resp.usage of kvops verify"
    return (
        f", by up to {tokens.worst} tokens in the others and {share} in all: text may be read as other tokens than "
        "those it was made of"
    )


def _client(client: ClientHealth) -> Iterator[str]:
    if client.doubt is not None:
        yield f"client: its times are doubtful: {client.doubt}"
    elif client.cpu_max is not None and client.lag_max is not None:
        late = client.lateness
        sends = (
            ""
            if late.max is None
            else f", scheduled sends at most {format_duration(late.max)} late"
        )
        cpu = format_ratio(client.cpu_max)
        yield f"client: no bottleneck (at most {cpu} of a core{_timers(client)}{sends})"
    else:
        yield f"client: {UNSEEN}"
    if client.crowd is not None:
        yield f"machine: {client.crowd}"
    elif client.machine is not None:
        yield f"machine: {format_ratio(client.machine)} of its CPUs used in the median{_others(client)}"


def _timers(client: ClientHealth) -> str:
    """A late timer reads a token late: what the reader must know is how much, and how often."""
    worst, bound = client.lag_max or 0.0, format_duration(LAG_BOUND)
    if worst <= LAG_BOUND:
        return f", timers never over {bound} late"
    return (
        f", timers over {bound} late in {client.late_samples} of {client.samples} seconds: a time of such a second may "
        f"read up to {format_duration(worst)} too long"
    )


def _others(client: ClientHealth) -> str:
    if client.others is None:
        return ", the node's part of it is not known"
    return f", {format_ratio(client.others)} by others than load and node"

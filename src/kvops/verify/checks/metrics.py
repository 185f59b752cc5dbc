"""Do the metrics that dashboards and alerts rely on exist, with the right type, and do they move?"""

from __future__ import annotations

import math
import time
from collections import Counter

from pydantic import Field

from kvops.telemetry import prometheus
from kvops.telemetry.prometheus import Exposition
from kvops.verify.api import token_count
from kvops.verify.check import Check, Outcome, Parameters, inconclusive, require, skip
from kvops.verify.context import Context, pause
from kvops.verify.contract import FAMILIES, ONE_PER_REQUEST
from kvops.verify.judge import answered, status_and_code

REJECTIONS = "kvops_request_rejections_total"
_REMEDY = "dashboards, alerts and autoscalers go blind: run the kvops version they were made for"


class ContractParameters(Parameters):
    requests: int = Field(default=3, ge=1, le=32)
    settle_within: float = Field(default=5.0, gt=0)
    """Seconds until the counters must show the requests."""


async def contract(context: Context, parameters: ContractParameters) -> Outcome:
    if not context.is_kvops:
        skip(f"the contract is of kvops nodes; this is {context.facts.engine or 'another engine'}")
    before = await _page(context)
    faults = family_faults(before)
    require(
        not faults,
        observed=f"{len(faults)} faults: {'; '.join(faults[:4])}",
        expected=f"{len(FAMILIES)} families with their types, every series once",
        remedy=_REMEDY,
        faults=faults,
    )
    grown = await _ask(context, parameters.requests)
    after, missing = await _settled(context, before, grown, parameters.settle_within)
    require(
        not missing,
        observed="; ".join(missing),
        expected=f"counters that grow by {parameters.requests} requests and their tokens",
        remedy="the node's counters do not tell what it did",
        faults=missing,
    )
    size = f"{len(FAMILIES)} families, {len(after.series)} series"
    return Outcome(
        verdict="pass",
        observed=f"{size}; moved by {parameters.requests} requests",
        expected="all typed, stated once, moving",
        n=parameters.requests,
        evidence={"families": len(FAMILIES), "series": len(after.series), "moved": dict(grown)},
    )


async def _page(context: Context) -> Exposition:
    reply = await context.api.get("/metrics")
    require(
        reply.status == 200,
        observed=f"/metrics: {status_and_code(reply)}",
        expected="200",
        remedy=_REMEDY,
    )
    return prometheus.parse(reply.text)


def family_faults(page: Exposition) -> list[str]:
    """Families missing or of the wrong type, series stated twice, histograms that do not add up."""
    faults = [f"{name} is missing" for name in FAMILIES if name not in page.types]
    faults += [
        f"{name} is a {page.types[name]}, not a {kind}"
        for name, kind in FAMILIES.items()
        if name in page.types and page.types[name] != kind
    ]
    faults += [f"{name} is stated twice" for name in page.duplicates]
    histograms = [name for name, kind in page.types.items() if kind == "histogram"]
    return faults + [f for name in histograms for f in histogram_faults(page, name)]


def histogram_faults(page: Exposition, name: str) -> list[str]:
    """Buckets must not fall with `le`, and the `+Inf` bucket is the count."""
    by_labels: dict[frozenset[tuple[str, str]], list[tuple[float, float]]] = {}
    for (series, labels), value in page.series.items():
        if series == f"{name}_bucket":
            edge = _edge(dict(labels).get("le", ""))
            rest = frozenset(pair for pair in labels if pair[0] != "le")
            by_labels.setdefault(rest, []).append((edge, value))
    faults = []
    for labels, buckets in by_labels.items():
        counts = [value for _, value in sorted(buckets)]
        ordered = counts == sorted(counts) and not any(math.isnan(edge) for edge, _ in buckets)
        if not ordered or counts[-1] != page.series.get((f"{name}_count", labels)):
            faults.append(f"the buckets of {name} do not add up to its count")
    return faults


def _edge(text: str) -> float:
    """NaN for what is no number."""
    try:
        return float(text)
    except ValueError:
        return math.nan


async def _ask(context: Context, requests: int) -> Counter[str]:
    """Send the requests; by how much which series must have grown at least."""
    grown: Counter[str] = Counter()
    for _ in range(requests):
        body = context.completion("The quick brown fox", 4)
        usage = answered(await context.api.post("/v1/completions", body), "a completion").usage
        grown.update(ONE_PER_REQUEST)
        grown["kvops_prompt_tokens_total"] += token_count(usage.get("prompt_tokens")) or 0
        grown["kvops_generation_tokens_total"] += token_count(usage.get("completion_tokens")) or 0
    grown["kvops_engine_steps_total"] = 1
    await _be_refused(context)
    grown[REJECTIONS] = 1
    return grown


async def _be_refused(context: Context) -> None:
    body = context.completion("Hello", 1) | {"model": "no-such-model"}
    reply = await context.api.post("/v1/completions", body)
    if reply.status < 400:
        inconclusive(
            f"a request for an unknown model was answered {reply.status}",
            expected="a refusal, to see it counted",
            remedy="see resp.errors",
        )


async def _settled(
    context: Context, before: Exposition, grown: Counter[str], within: float
) -> tuple[Exposition, list[str]]:
    """Look until every series has grown; whatever has not by then is listed."""
    deadline = time.monotonic() + within
    while True:
        after = await _page(context)
        missing = growth_faults(before, after, grown)
        if not missing or time.monotonic() >= deadline:
            return after, missing
        await pause()


def growth_faults(before: Exposition, after: Exposition, grown: Counter[str]) -> list[str]:
    """Exact when the node served nobody else meanwhile, else a lower bound."""
    deltas = {n: (after.total(n) or 0.0) - (before.total(n) or 0.0) for n in grown}
    alone = deltas["kvops_requests_total"] == grown["kvops_requests_total"]
    faults = []
    for name, wanted in grown.items():
        exact = alone and name not in ("kvops_engine_steps_total", REJECTIONS)
        if deltas[name] < wanted or (exact and deltas[name] != wanted):
            faults.append(f"{name} grew by {deltas[name]:g} instead of {wanted}")
    return faults


CONTRACT = Check(
    id="metrics.contract",
    title="Metrics contract",
    purpose="Every promised metric family is there, typed, stated once, and moves by what was asked of the node.",
    parameters=ContractParameters,
    run=contract,
    area="V6",
    typical=2.0,
)

"""Does the node's own first-token time agree with what a client waits?

A node that takes the role of a chat message, or an empty delta, for its first token looks fast on every dashboard.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

import msgspec
from pydantic import Field

from kvops.telemetry import prometheus
from kvops.units import format_duration
from kvops.verify.check import Check, Outcome, Parameters, Samples, fail, inconclusive, skip
from kvops.verify.context import Context, pause
from kvops.verify.timing import round_trip, timed

HISTOGRAMS = {
    "kvops": "kvops_time_to_first_token_seconds",
    "vllm": "vllm:time_to_first_token_seconds",
    "sglang": "sglang:time_to_first_token_seconds",
}
SERIES = "ttft.idle"
ROUNDS = 20
"""Of so many `requests`, at most."""
_OTHERS = "run the gate while nobody else uses the node"


class TruthParameters(Parameters):
    min_samples: int = Field(default=5, ge=1, le=1000)
    requests: int = Field(default=8, ge=5, le=1000)
    """At a time: after so many it is looked whether they are enough."""
    samples: int = Field(default=24, ge=5, le=1000)
    """So many are enough, where nothing is missing and `--baseline` asks for no more."""
    budget: float = Field(default=10.0, ge=0)
    """Seconds in which it asks on until they are; those of the first `requests` are not bounded by it."""
    prompt_tokens: int = Field(default=256, ge=16)
    """Doubled until the first token takes `long_enough`; less where the node's limit is lower."""
    max_prompt_tokens: int = Field(default=2048, ge=16)
    long_enough: float = Field(default=0.1, ge=0)
    """Seconds beside which the network's and the client's own are small."""
    share: float = Field(default=0.3, gt=0, lt=1)
    """Of what the client waits: so much may be the way there and back."""
    floor: float = Field(default=0.01, ge=0)
    """Seconds, beside twice the round trip, that may be the client's own."""
    settle_within: float = Field(default=5.0, gt=0)
    """Seconds until the histogram must show a request."""


class Pair(msgspec.Struct, frozen=True):
    """One request, seconds to its first token."""

    client: float
    node: float | None
    """None: the histogram did not count it."""


async def ttft_truth(context: Context, parameters: TruthParameters) -> Outcome:
    name = HISTOGRAMS.get(context.facts.engine or "")
    if name is None:
        skip(f"no first-token histogram of {context.facts.engine or 'this engine'} is known")
    trip, tokens = await round_trip(context), await _length(context, parameters)
    pairs, deadline = list[Pair](), time.monotonic() + parameters.budget
    for _ in range(ROUNDS):
        pairs += await _pairs(context, name, tokens, parameters)
        if not _undecided(context, pairs, trip, parameters) or time.monotonic() >= deadline:
            break
    return judge(pairs, trip, parameters)


def _undecided(
    context: Context, pairs: list[Pair], trip: float, parameters: TruthParameters
) -> bool:
    """What a busy machine does to the median of some it does not do to that of more."""
    few = len(pairs) < parameters.samples
    slow = missing_time(pairs) > allowed(pairs, trip, parameters)
    return few or slow or context.still_open(SERIES, _samples(pairs))


def _samples(pairs: Sequence[Pair]) -> Samples:
    waited = [pair.client for pair in pairs if pair.node is not None]
    return Samples.of(waited, unit="seconds", direction="lower")


async def _length(context: Context, parameters: TruthParameters) -> int:
    """Prompt tokens whose first token takes long enough to be told from the network, if any does."""
    limit = context.facts.max_model_len or parameters.max_prompt_tokens * 2
    most = min(parameters.max_prompt_tokens, limit // 2)
    tokens = min(parameters.prompt_tokens, most)
    while tokens < most:
        tried = [await timed(context, await context.prompts.fit(tokens), 1) for _ in range(2)]
        if min(one.ttft for one in tried) >= parameters.long_enough:
            break
        tokens = min(2 * tokens, most)
    return tokens


async def _pairs(
    context: Context, name: str, tokens: int, parameters: TruthParameters
) -> list[Pair]:
    """One request after the other, each with the histogram's growth; those of others leave the pair out."""
    found = []
    for _ in range(parameters.requests):
        # Made first: an engine without a tokenizer is asked for answers, which its histogram counts.
        prompt = await context.prompts.fit(tokens)
        before = await _histogram(context, name)
        one = await timed(context, prompt, 4)
        count, total = await _grown(context, name, before, parameters.settle_within)
        if count <= 1:
            found.append(Pair(one.ttft, total if count else None))
    return found


async def _histogram(context: Context, name: str) -> tuple[float, float]:
    """Requests counted and seconds summed up since start."""
    reply = await context.api.get("/metrics")
    if reply.status != 200:
        skip(f"/metrics answers {reply.status}: no first-token time of the node's own is shown")
    page = prometheus.parse(reply.text)
    count, total = page.total(f"{name}_count"), page.total(f"{name}_sum")
    if count is None or total is None:
        skip(f"/metrics has no {name}")
    return count, total


async def _grown(
    context: Context, name: str, before: tuple[float, float], within: float
) -> tuple[float, float]:
    deadline = time.monotonic() + within
    while True:
        now = await _histogram(context, name)
        if now[0] > before[0] or time.monotonic() >= deadline:
            return now[0] - before[0], now[1] - before[1]
        await pause()


def missing_time(pairs: list[Pair]) -> float:
    """Seconds by which the node claims to be faster than its client saw, the median; 0 without a pair."""
    return median([pair.client - pair.node for pair in pairs if pair.node is not None] or [0.0])


def allowed(pairs: list[Pair], trip: float, parameters: TruthParameters) -> float:
    """Seconds that may be network and client."""
    waited = median([pair.client for pair in pairs] or [0.0])
    return max(parameters.floor + 2 * trip, parameters.share * waited)


def _counted(pairs: list[Pair], parameters: TruthParameters) -> list[Pair]:
    """Those that the histogram counted, when they are enough."""
    counted = [pair for pair in pairs if pair.node is not None]
    if len(pairs) < parameters.min_samples:
        inconclusive(
            f"only {len(pairs)} requests were alone on the node",
            expected=f"{parameters.min_samples} or more",
            remedy=_OTHERS,
            n=len(pairs),
        )
    if len(counted) < parameters.min_samples:
        fail(
            observed=f"the histogram counted {len(counted)} of {len(pairs)} requests",
            expected="each request once",
            remedy="dashboards and alerts on first-token time see nothing: report the defect",
            n=len(pairs),
        )
    return counted


def judge(pairs: list[Pair], trip: float, parameters: TruthParameters) -> Outcome:
    """`trip`: seconds of a request that computes nothing."""
    counted = _counted(pairs, parameters)
    client, node = median(p.client for p in counted), median(p.node or 0.0 for p in counted)
    missing, may = missing_time(counted), allowed(counted, trip, parameters)
    evidence = {"client": client, "node": node, "missing": missing, "allowed": may, "trip": trip}
    said = f"client {format_duration(client)}, node {format_duration(node)} (medians)"
    if missing > may:
        fail(
            observed=f"{said}: {format_duration(missing)} are missing",
            expected=f"at most {format_duration(may)} apart",
            remedy="the node counts something before the first content as first token, or a proxy holds tokens back: "
            "do not judge or alert by its first-token time",
            n=len(counted),
            **evidence,
        )
    if client <= may and node < client / 2:
        inconclusive(
            f"{said}: no longer than the network's own {format_duration(may)}",
            expected="a first token that takes longer than the network",
            remedy="in a profile of your own: {id: perf.ttft_truth, parameters: {prompt_tokens: "
            f"{4 * parameters.prompt_tokens}, max_prompt_tokens: {4 * parameters.max_prompt_tokens}}}",
            n=len(counted),
            **evidence,
        )
    return Outcome(
        verdict="pass",
        observed=said,
        expected=f"at most {format_duration(may)} apart",
        unit="seconds",
        n=len(counted),
        evidence=evidence,
        samples={SERIES: _samples(counted)},
    )


TTFT_TRUTH = Check(
    id="perf.ttft_truth",
    title="First token told truly",
    purpose="The node's own first-token times are not shorter than what a client waits, less the network.",
    parameters=TruthParameters,
    run=ttft_truth,
    area="V8",
    typical=5.0,
    needs=("idle node",),
)

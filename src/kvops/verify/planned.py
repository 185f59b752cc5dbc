"""The load that a node is planned for: sent once in a gate run, step by step, and looked at by every check about it."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from statistics import median

import msgspec
from pydantic import Field

from kvops.load.pacing import Pacing
from kvops.load.records import RequestRecord
from kvops.load.reports.base import RunData
from kvops.load.statistics import summarize
from kvops.telemetry import prometheus
from kvops.telemetry.snapshot import Known, NodeSnapshot
from kvops.verify.check import Parameters
from kvops.verify.context import Context, pause
from kvops.verify.driven import drive, trusted
from kvops.verify.timing import once

SCENARIO = "batch_offline"
"""A list of requests worked off by so many users: it ends with the last answer, however fast the node is."""
OPEN_SCENARIO = "soak"
"""Where the plan is a rate: requests that come by a clock, whatever the answers."""
SETTLE_WITHIN = 5.0
"""Seconds until the node's counters must show the last request."""
ROUNDS = 3
LEAST_SECONDS = 10.0
"""Of a load by the clock."""
STEP_REQUESTS = 12
"""Of a step below the full load."""
_TOKENS = {
    "kvops": ("kvops_prompt_tokens_total", "kvops_generation_tokens_total"),
    "vllm": ("vllm:prompt_tokens_total", "vllm:generation_tokens_total"),
    "sglang": ("sglang:prompt_tokens_total", "sglang:generation_tokens_total"),
    "llamacpp": ("llamacpp:prompt_tokens_total", "llamacpp:tokens_predicted_total"),
}
_PRESSURE = {
    "kvops": ("kvops_preemptions_total", "kvops_kv_evictions_total"),
    "vllm": ("vllm:num_preemptions_total", ""),
}
"""Empty: the engine does not count it."""


class LoadParameters(Parameters):
    """Alike for all checks that look at the planned load, so that it is sent once."""

    users: int | None = Field(default=None, ge=1, le=10_000)
    """Requests at once that the node is planned for. Default: as many as it says to run at once, up to `max_users`."""
    max_users: int = Field(default=8, ge=1, le=10_000)
    rate: float | None = Field(default=None, gt=0, le=10_000)
    """Requests a second that the node is planned for, in place of users: they come at random (Poisson), and what a
    late one waits counts."""
    requests: int = Field(default=100, ge=1, le=100_000)
    """At the full load."""
    prompt_tokens: int = Field(default=64, ge=16)
    max_tokens: int = Field(default=24, ge=4)
    gain: float = Field(default=1.25, gt=0)
    """So many times as much work as for one user: where more users do not bring it, the load grows no further."""


class TokenCounts(msgspec.Struct, frozen=True):
    """Tokens that a node has read and made since it started."""

    prompt: float
    generated: float


class Pressure(msgspec.Struct, frozen=True):
    """How often a node was short of KV blocks since it started; None: not told."""

    preemptions: float | None
    evictions: float | None


class Counters(msgspec.Struct, frozen=True):
    """What `/metrics` of the node counts."""

    tokens: TokenCounts | None = None
    pressure: Pressure = Pressure(None, None)


class Planned(msgspec.Struct, frozen=True):
    users: int
    """Of the full load."""
    steps: tuple[RunData, ...]
    """By rising number of users; the last is the full load, unless more users brought nothing."""
    gained: float | None
    """How much more the node does for several users than for one; None where one user, or a rate, is the full load."""
    repeated: tuple[RunData, ...]
    """Steps that were measured a second time."""
    counted: tuple[Counters, Counters]
    """Before and after all of it."""
    after: NodeSnapshot | None
    """Taken once the node's counters had shown the last request, or had their time to."""

    @property
    def full(self) -> RunData:
        return self.steps[-1]

    @property
    def records(self) -> list[RequestRecord]:
        """Of all that was sent."""
        return [record for step in (*self.steps, *self.repeated) for record in step.records]

    @property
    def before(self) -> NodeSnapshot | None:
        return self.steps[0].info.before


async def planned_load(context: Context, parameters: LoadParameters) -> Planned:
    """Sends the load, or gives that of an earlier check. Ends the check as inconclusive when the client was too busy
    to be believed.
    """
    p = parameters
    lengths = (p.requests, p.prompt_tokens, p.max_tokens)
    key = ("planned load", p.users, p.max_users, p.rate, lengths, p.gain)
    return await once(context, key, lambda: _send(context, p))


async def _send(context: Context, parameters: LoadParameters) -> Planned:
    users = await planned_users(context, parameters)
    before = await counters(context)
    steps: list[RunData] = []
    repeated: list[RunData] = []
    gained: float | None = None
    if parameters.rate is not None:
        steps.append(await send_full(context, parameters, users, parameters.requests))
    for step in ramp(users) if parameters.rate is None else ():
        requests = parameters.requests if step == users else max(STEP_REQUESTS, 3 * step)
        steps.append(await send_step(context, parameters, step, requests))
        if len(steps) == 2:
            gained, repeated = await _gain(context, parameters, steps[0], steps[1])
            if gained < parameters.gain:
                break
    told = tokens_told([record for run in (*steps, *repeated) for record in run.records])
    after, snapshot = await _settled(context, before, told)
    return Planned(users, tuple(steps), gained, tuple(repeated), (before, after), snapshot)


async def _gain(
    context: Context, parameters: LoadParameters, one: RunData, several: RunData
) -> tuple[float, list[RunData]]:
    """The best of up to ROUNDS: each sets the step of several users against one of a single user just before it, so
    that a slow moment of the machine is no bound.
    """
    gain, again = speed_up(one, several), list[RunData]()
    for _ in range(ROUNDS - 1):
        if gain >= parameters.gain:
            break
        alone, together = [
            await send_step(context, parameters, step.info.users, len(step.records))
            for step in (one, several)
        ]
        gain = max(gain, speed_up(alone, together))
        again += [alone, together]
    return gain, again


def tokens_told(records: Sequence[RequestRecord]) -> TokenCounts:
    """What the usage of all answers adds up to."""
    return TokenCounts(
        sum(record.prompt_tokens or 0 for record in records),
        sum(record.completion_tokens or 0 for record in records),
    )


async def _settled(
    context: Context, before: Counters, told: TokenCounts
) -> tuple[Counters, NodeSnapshot | None]:
    """The node's counters once they show what the clients were told, or had SETTLE_WITHIN for it."""
    deadline = time.monotonic() + SETTLE_WITHIN
    while True:
        after = await counters(context)
        snapshot = await context.node.snapshot() if context.node is not None else None
        known = before.tokens is not None and after.tokens is not None
        if not known or moved(before, after) == told or time.monotonic() >= deadline:
            return after, snapshot
        await pause()


def moved(before: Counters, after: Counters) -> TokenCounts | None:
    """Tokens between the two; None where the node does not count them."""
    if before.tokens is None or after.tokens is None:
        return None
    return TokenCounts(
        after.tokens.prompt - before.tokens.prompt, after.tokens.generated - before.tokens.generated
    )


def pressed(before: Counters, after: Counters) -> Pressure:
    """Preemptions and evictions between the two."""

    def more(first: float | None, last: float | None) -> float | None:
        return None if first is None or last is None else last - first

    old, new = before.pressure, after.pressure
    return Pressure(
        more(old.preemptions, new.preemptions),
        more(old.evictions, new.evictions),
    )


async def send_full(
    context: Context, parameters: LoadParameters, users: int, requests: int
) -> RunData:
    """So many requests at the full load, by users or by the clock."""
    if parameters.rate is None:
        return await send_step(context, parameters, users, requests)
    options = {
        "prompt_tokens": str(parameters.prompt_tokens),
        "max_tokens": str(parameters.max_tokens),
    }
    data = await drive(
        context,
        OPEN_SCENARIO,
        users=1,
        duration=max(LEAST_SECONDS, requests / parameters.rate),
        options=options,
        pacing=Pacing(kind="poisson", rate=parameters.rate),
    )
    return trusted(data)


async def send_step(
    context: Context, parameters: LoadParameters, users: int, requests: int
) -> RunData:
    """So many requests by so many users."""
    options = {
        "requests": requests,
        "prompt_tokens": str(parameters.prompt_tokens),
        "max_tokens": str(parameters.max_tokens),
        "priority": "none",
    }
    return trusted(await drive(context, SCENARIO, users=users, duration=None, options=options))


def speed_up(one: RunData, several: RunData) -> float:
    """How much more a node does for several users than for one: as many times as there are users if they do not slow
    each other, 1 if it serves them one after the other. From the medians of whole answers, so that what the client
    does in between is in neither. 0 without answers.
    """
    alone, together = (
        [record.e2e for record in step.records if record.expected and record.ttft is not None]
        for step in (one, several)
    )
    if not alone or not together:
        return 0.0
    return several.info.users * median(alone) / median(together)


def rate(step: RunData) -> float:
    """Output tokens a second over the whole step."""
    return summarize(step.records).output_tokens_per_second or 0.0


def said(step: RunData) -> str:
    """The load of a step, in words."""
    if step.info.pacing.open:
        return f"{step.info.pacing.rate:g} requests/s"
    return f"{step.info.users} user{'s' if step.info.users > 1 else ''}"


def ramp(users: int) -> Sequence[int]:
    """One, half, all."""
    return sorted({1, math.ceil(users / 2), users})


async def planned_users(context: Context, parameters: LoadParameters) -> int:
    if parameters.users is not None:
        return parameters.users
    if context.node is not None:
        queue = (await context.node.snapshot()).queue
        if isinstance(queue, Known):
            return max(1, min(queue.value.max_running, parameters.max_users))
    return parameters.max_users


async def counters(context: Context) -> Counters:
    """Of `/metrics`, as far as the engine's names for them are known and there."""
    engine = context.facts.engine or ""
    reply = await context.api.get("/metrics")
    if reply.status != 200 or engine not in _TOKENS:
        return Counters()
    page = prometheus.parse(reply.text)
    prompt, generated = (page.total(name) for name in _TOKENS[engine])
    preemptions, evictions = (page.total(name) for name in _PRESSURE.get(engine, ("", "")))
    tokens = None
    if prompt is not None and generated is not None:
        tokens = TokenCounts(prompt, generated)
    return Counters(tokens, Pressure(preemptions, evictions))

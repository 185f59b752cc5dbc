"""Does the health route tell the truth: 200 while tokens come, and not while none does?"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import httpx
from pydantic import Field

from kvops.units import format_duration
from kvops.verify.api import Api, StreamRefused, delta_text, first_choice, json_object
from kvops.verify.check import Check, Outcome, Parameters, fail, require, skip
from kvops.verify.context import Context
from kvops.verify.judge import answered

HEALTH_ROUTES = ("/livez", "/readyz", "/health")
LOOK_EVERY = 0.1
FEWEST_LOOKS = 3
HEALTH_TIMEOUT = 5.0


class TruthParameters(Parameters):
    tokens: int = Field(default=32, ge=2, le=512)
    token_within: float = Field(default=30.0, gt=0, le=55)
    """Seconds without a token while a request is in flight, after which no health route may say 200."""


@dataclass
class Pulse:
    """Of one stream, while its tokens come."""

    at: float = field(default_factory=time.monotonic)
    tokens: int = 0
    ended: bool = False

    @property
    def silence(self) -> float:
        return time.monotonic() - self.at


async def truth(context: Context, parameters: TruthParameters) -> Outcome:
    routes = [p for p, status in (await _look(context.api, HEALTH_ROUTES)).items() if status != 404]
    if not routes:
        skip("the node has no health route: /livez, /readyz, /health give 404")
    pulse = Pulse()
    reader = asyncio.create_task(_read(context, parameters.tokens, pulse))
    try:
        looks = await _watch(context.api, routes, pulse, reader, parameters.token_within)
    finally:
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
    return Outcome(
        verdict="pass",
        observed=f"{', '.join(routes)} said the truth {looks} times, over {pulse.tokens} tokens",
        expected=f"200 while tokens come, and not after {parameters.token_within:g} s without one",
        n=looks,
        evidence={"routes": routes, "looks": looks, "tokens": pulse.tokens},
    )


async def _read(context: Context, tokens: int, pulse: Pulse) -> None:
    extra = {"ignore_eos": True} if context.facts.engine in ("kvops", "vllm") else {}
    body = context.completion("Once upon a time", tokens, **extra)
    async with context.api.events("/v1/completions", body) as events:
        async for payload in events:
            if delta_text(first_choice(json_object(payload))):
                pulse.at, pulse.tokens = time.monotonic(), pulse.tokens + 1
    pulse.ended = True


async def _watch(
    api: Api, routes: list[str], pulse: Pulse, reader: asyncio.Task[None], within: float
) -> int:
    """Look at the routes until the stream has ended; how often. Raises a Finding when one lies."""
    looks = 0
    while looks < FEWEST_LOOKS or not reader.done():
        silent = pulse.silence
        replies = await _look(api, routes)
        looks += 1
        if silent > within and not pulse.ended:
            _judge_silence(replies, silent, within)
            return looks
        _require_healthy(replies, pulse, looks)
        await asyncio.sleep(LOOK_EVERY)
    try:
        await reader
    except StreamRefused as refused:
        answered(refused.reply, "a stream")
    require(
        pulse.tokens > 0,
        observed="the stream ended without a token",
        expected="tokens",
        remedy="see resp.stream",
    )
    return looks


def _judge_silence(replies: dict[str, int | None], silent: float, within: float) -> None:
    lying = [path for path, status in replies.items() if status == 200]
    if lying:
        fail(
            observed=f"{', '.join(lying)} say 200, and no token came for {format_duration(silent)}",
            expected=f"no 200 after {format_duration(within)} without a token",
            remedy="a balancer keeps sending here: restart the node; on kvops lower runtime.stall_after",
            routes=replies,
        )


def _require_healthy(replies: dict[str, int | None], pulse: Pulse, looks: int) -> None:
    sick = {path: status for path, status in replies.items() if status != 200}
    said = ", ".join(f"{path} says {status or 'nothing'}" for path, status in sick.items())
    require(
        not sick or pulse.tokens == 0,
        observed=f"{said} while tokens come",
        expected="200 while tokens come",
        remedy="a balancer takes a node out that works: is it draining? kvops node status",
        n=looks,
        routes=replies,
    )


async def _look(api: Api, routes: list[str] | tuple[str, ...]) -> dict[str, int | None]:
    """Status by route; None where no answer came."""
    found: dict[str, int | None] = {}
    for path in routes:
        try:
            found[path] = (await api.get(path, within=HEALTH_TIMEOUT, keyed=False)).status
        except httpx.TransportError:
            found[path] = None
    return found


TRUTH = Check(
    id="health.truth",
    title="Health tells the truth",
    purpose="Health says 200 while tokens come, and stops saying so when none comes in time.",
    parameters=TruthParameters,
    run=truth,
    area="V1",
    typical=2.0,
)

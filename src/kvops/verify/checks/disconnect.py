"""Does the node stop working for a client that has gone, and give its blocks back?"""

from __future__ import annotations

import asyncio
import contextlib

import httpx
from pydantic import Field

from kvops.units import format_duration
from kvops.verify.api import CHECK_BOUND
from kvops.verify.check import Check, Outcome, Parameters, inconclusive, require
from kvops.verify.context import Context
from kvops.verify.occupancy import Occupancy, occupancy, wait_until
from kvops.verify.streamed import first_delta


class FreesParameters(Parameters):
    within: float = Field(default=5.0, gt=0)
    """Seconds from the dropped connection to the blocks being free."""
    max_tokens: int = Field(default=4096, ge=16)
    """Output asked for, so long that it does not end by itself; less where the window is smaller."""


async def frees(context: Context, parameters: FreesParameters) -> Outcome:
    await occupancy(context)
    window = context.facts.max_model_len or 2048
    prompt = await context.prompts.fit(min(48, window // 2))
    tokens = min(parameters.max_tokens, window - prompt.tokens)
    extra = {"ignore_eos": True} if context.facts.engine in ("kvops", "vllm") else {}
    body = context.completion(prompt.text, tokens, **extra)
    seconds = {}
    for kind, drop in (("stream", _drop_stream), ("plain", _drop_plain)):
        before = await occupancy(context)
        await drop(context, body, before, parameters.within)
        seconds[kind] = await _freed(context, kind, before, tokens, parameters.within)
    return Outcome(
        verdict="pass",
        observed=", ".join(
            f"{kind}: free after {format_duration(took)}" for kind, took in seconds.items()
        ),
        expected=f"running and blocks back within {parameters.within:g} s",
        unit="seconds",
        n=len(seconds),
        evidence={"seconds": seconds, "asked_tokens": tokens},
    )


async def _drop_stream(
    context: Context, body: dict[str, object], before: Occupancy, within: float
) -> None:
    async with context.api.events("/v1/completions", body) as events:
        started = await first_delta(events)
        await _seen_running(context, before, within)
    require(
        started,
        observed="the stream ended without a token",
        expected="a first token",
        remedy="see resp.stream",
    )


async def _drop_plain(
    context: Context, body: dict[str, object], before: Occupancy, within: float
) -> None:
    request = asyncio.create_task(context.api.post("/v1/completions", body, within=CHECK_BOUND))
    try:
        await _seen_running(context, before, within)
    finally:
        request.cancel()
        with contextlib.suppress(asyncio.CancelledError, httpx.HTTPError):
            await request


async def _seen_running(context: Context, before: Occupancy, within: float) -> None:
    """Without having been seen the request cannot be seen to go."""
    _, seen = await wait_until(context, lambda now: now.running > before.running, within)
    if not seen:
        inconclusive(
            "the request was never seen running",
            expected="running + 1",
            remedy="it ended too soon, or waited in a queue: run the gate on an idle node",
        )


async def _freed(
    context: Context, kind: str, before: Occupancy, tokens: int, within: float
) -> float:
    """Seconds until a reading that is younger than the drop shows no more than there was before."""
    clock = asyncio.get_running_loop().time
    dropped = clock()

    def back(now: Occupancy) -> bool:
        fewer = now.running <= before.running and now.kv_used <= before.kv_used
        return fewer and now.age < clock() - dropped

    now, freed = await wait_until(context, back, within)
    took = round(clock() - dropped, 3)
    require(
        freed,
        observed=f"{kind}: running {now.running:g}, KV used {now.kv_used:g} after {format_duration(within)}",
        expected=f"running {before.running:g}, KV used {before.kv_used:g}, as before",
        remedy="the node works on for clients that have gone: report the defect",
        running=[before.running, now.running],
        kv_used=[before.kv_used, now.kv_used],
    )
    if now.generated - before.generated >= tokens:
        inconclusive(
            f"{kind}: all {tokens} tokens were generated before the request was gone",
            expected="an early end",
            remedy="the model is too fast for this window: raise max_tokens in the profile",
        )
    return took


FREES = Check(
    id="disconnect.frees",
    title="Disconnect frees",
    purpose="When a client hangs up, streaming or waiting, its request ends and its KV blocks come back.",
    parameters=FreesParameters,
    run=frees,
    area="V4",
    typical=2.0,
)

"""Does the node hold what it advertises at its limit, and say so when a request goes over it?"""

from __future__ import annotations

from pydantic import Field

from kvops.telemetry.snapshot import Known
from kvops.units import format_whole
from kvops.verify.api import CHECK_BOUND, Reply
from kvops.verify.check import Check, Outcome, Parameters, require, skip
from kvops.verify.context import Context
from kvops.verify.judge import SEE_LOG, answered, known_limit, status_and_code, usage_faults
from kvops.verify.prompts import Prompt
from kvops.verify.streamed import first_delta

TRUNCATED_HEADER = "x-kvops-truncated"


class NearLimitParameters(Parameters):
    max_prompt_tokens: int = Field(default=4096, ge=16)
    """Bounds the time; a longer limit is then tested in admission only, and the result says so."""
    max_tokens: int = Field(default=8, ge=1, le=256)


async def near_limit(context: Context, parameters: NearLimitParameters) -> Outcome:
    """Two requests: a prompt of (nearly) the limit, and one whose max_tokens fill the window exactly.

    Where the limit is above `max_prompt_tokens` the first is that long, and the observed value says so:
    the profile, which sets that bound, then claims no more than it.
    """
    limit = known_limit(context)
    room = limit - parameters.max_tokens
    prompt = await context.prompts.fit(min(room, parameters.max_prompt_tokens))
    whole = room <= parameters.max_prompt_tokens
    out = limit - prompt.tokens if whole and prompt.exact else parameters.max_tokens
    reply = answered(
        await context.api.post(
            "/v1/completions", context.completion(prompt.text, out), within=CHECK_BOUND
        ),
        f"{format_whole(prompt.tokens)} + {out} tokens of {format_whole(limit)}",
    )
    _require_counted(reply, prompt, out)
    await _require_exact_window(context, limit)
    tried = f"prompt of {format_whole(prompt.tokens)} tokens read, window of exactly {format_whole(limit)} accepted"
    note = "" if whole else "; longer prompts not tried: profile bound"
    return Outcome(
        verdict="pass",
        observed=tried + note,
        expected=f"prompts up to {format_whole(min(limit, parameters.max_prompt_tokens))} tokens",
        unit="tokens",
        n=2,
        evidence={
            "prompt_tokens": prompt.tokens,
            "max_tokens": out,
            "limit": limit,
            "whole_limit_prefilled": whole,
            "seconds": round(reply.seconds, 3),
        },
    )


def _require_counted(reply: Reply, prompt: Prompt, out: int) -> None:
    faults = usage_faults(reply.usage, out)
    counted = reply.usage.get("prompt_tokens")
    if prompt.exact and counted != prompt.tokens:
        faults.append(f"usage counts {counted} prompt tokens, the tokenizer {prompt.tokens}")
    require(
        not faults,
        observed="; ".join(faults),
        expected=f"{prompt.tokens} prompt tokens, at most {out} more",
        remedy="the node cuts long prompts or counts them wrongly",
        faults=faults,
    )


async def _require_exact_window(context: Context, limit: int) -> None:
    """A short prompt with all the rest of the window as output, dropped at its first token."""
    prompt = await context.prompts.fit(min(limit - 1, 64))
    out = limit - prompt.tokens if prompt.exact else limit - prompt.tokens - 16
    body = context.completion(prompt.text, out)
    async with context.api.events("/v1/completions", body) as events:
        started = await first_delta(events)
    require(
        started,
        observed=f"no token with prompt {prompt.tokens} + max_tokens {out} = {limit}",
        expected="a request that fills the window exactly is accepted",
        remedy=SEE_LOG,
    )


class OverLengthParameters(Parameters):
    max_prompt_tokens: int = Field(default=262_144, ge=16)
    """On nodes with a longer limit the check is skipped: the bodies would be too large to send."""


async def over_length(context: Context, parameters: OverLengthParameters) -> Outcome:
    limit = known_limit(context)
    if 2 * limit > parameters.max_prompt_tokens:
        most = format_whole(parameters.max_prompt_tokens)
        skip(f"twice the limit of {format_whole(limit)} is over {most} tokens")
    restarts = await _restarts(context)
    by_one = await context.prompts.fit(limit)
    double = await context.prompts.fit(2 * limit)
    chat = [{"role": "user", "content": double.text}]
    probes = {
        "+1": (
            "/v1/completions",
            context.completion(by_one.text, limit + 1 - by_one.tokens),
        ),
        "2×": ("/v1/completions", context.completion(double.text, 1)),
        "2× chat": ("/v1/chat/completions", context.chat(chat, 1)),
    }
    seen = {}
    for name, (path, body) in probes.items():
        reply = await context.api.post(path, body, within=CHECK_BOUND)
        _require_refused_or_marked(context, name, reply, limit)
        seen[name] = "marked truncation" if reply.status == 200 else str(reply.status)
    await _require_alive(context, restarts)
    return Outcome(
        verdict="pass",
        observed=", ".join(f"{n}: {s}" for n, s in seen.items()) + "; alive after",
        expected="400 with the limit, or a marked truncation",
        n=len(probes) + 1,
        evidence={"limit": limit, "answers": seen, "exact": by_one.exact},
    )


def _require_refused_or_marked(context: Context, name: str, reply: Reply, limit: int) -> None:
    expected = "400 context_length_exceeded with prompt_tokens and limit, or a marked truncation"
    if reply.status == 200:
        require(
            TRUNCATED_HEADER in reply.headers and bool(reply.usage.get("truncated_tokens")),
            observed=f"{name} was answered 200 without a mark: {reply.usage.get('prompt_tokens')} prompt tokens",
            expected=expected,
            remedy="over-length prompts are cut or overrun silently: set runtime.over_length: reject",
        )
        return
    require(
        reply.status in (400, 413, 422) and bool(reply.error),
        observed=f"{name}: {status_and_code(reply)}",
        expected=expected,
        remedy=SEE_LOG,
    )
    if context.is_kvops:
        error = reply.error
        require(
            error.get("code") == "context_length_exceeded"
            and error.get("limit") == limit
            and isinstance(error.get("prompt_tokens"), int),
            observed=f"{name}: {status_and_code(reply)}, limit {error.get('limit')}",
            expected=f"context_length_exceeded, prompt_tokens, limit {limit}",
            remedy="clients cannot tell how much to cut: the error object lacks the numbers",
        )


async def _require_alive(context: Context, restarts: int | None) -> None:
    reply = await context.api.post("/v1/completions", context.completion("Hello", 1))
    answered(reply, "a short request after the over-length ones")
    now = await _restarts(context)
    require(
        restarts == now,
        observed=f"engine restarts went from {restarts} to {now}",
        expected="no restart",
        remedy="over-length input kills the engine: see kvops node logs",
    )


async def _restarts(context: Context) -> int | None:
    if context.node is None:
        return None
    progress = (await context.node.snapshot()).progress
    return progress.value.engine_restarts if isinstance(progress, Known) else None


NEAR_LIMIT = Check(
    id="resp.near_limit",
    title="Near the limit",
    purpose="A prompt close to the advertised limit is read whole; a window filled exactly is accepted.",
    parameters=NearLimitParameters,
    run=near_limit,
)
OVER_LENGTH = Check(
    id="resp.over_length",
    title="Over the limit",
    purpose="One token or twice too much is refused with the numbers or cut with a mark, and the node lives on.",
    parameters=OverLengthParameters,
    run=over_length,
)

"""Does the node hold what it advertises at its limit, and say so when a request goes over it?"""

from __future__ import annotations

from pydantic import Field

from kvops.units import format_whole
from kvops.verify.api import CHECK_BOUND, Reply, StreamRefused
from kvops.verify.check import Check, Outcome, Parameters, require, skip
from kvops.verify.checks.truncation import HEADER, truncation
from kvops.verify.context import Context
from kvops.verify.judge import (
    SEE_LOG,
    Fault,
    answered,
    known_limit,
    require_none,
    status_and_code,
    usage_faults,
)
from kvops.verify.prompts import Prompt
from kvops.verify.restarts import engine_restarts
from kvops.verify.streamed import first_delta

TOO_LONG = (400, 413, 422)
_CUTS = "fewer tokens are counted than were sent: the node cuts long prompts, or does not count all of them"


class NearLimitParameters(Parameters):
    max_prompt_tokens: int = Field(default=4096, ge=16)
    """Bounds the time; a longer limit is then tested in admission only, and the result says so."""
    max_tokens: int = Field(default=8, ge=1, le=256)


async def near_limit(context: Context, parameters: NearLimitParameters) -> Outcome:
    """A prompt of (nearly) the limit, and two whose max_tokens fill the window to one less and exactly.

    Where the limit is above `max_prompt_tokens` the first is that long, and the observed value says so:
    the profile, which sets that bound, then claims no more than it.
    """
    limit = known_limit(context)
    room = limit - parameters.max_tokens
    prompt = await context.prompts.fit(min(room, parameters.max_prompt_tokens))
    whole = room <= parameters.max_prompt_tokens
    out = limit - prompt.tokens if whole and prompt.exact else parameters.max_tokens
    reply = _taken(
        await context.api.post(
            "/v1/completions", context.completion(prompt.text, out), within=CHECK_BOUND
        ),
        f"{format_whole(prompt.tokens)} + {out} tokens of {format_whole(limit)}",
    )
    _require_counted(reply, prompt, out)
    for total in (limit - 1, limit):
        await _require_window(context, limit, total)
    tried = f"prompt of {format_whole(prompt.tokens)} tokens read, windows of {format_whole(limit)} and one less taken"
    note = "" if whole else "; longer prompts not tried: profile bound"
    return Outcome(
        verdict="pass",
        observed=tried + note,
        expected=f"prompts up to {format_whole(min(limit, parameters.max_prompt_tokens))} tokens",
        unit="tokens",
        n=3,
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
        cut = isinstance(counted, int) and counted < prompt.tokens
        faults.append(
            Fault(
                f"usage counts {counted} prompt tokens, the tokenizer {prompt.tokens}",
                _CUTS if cut else "long prompts are counted wrongly: do not bill or trim by usage",
            )
        )
    require_none(faults, expected=f"{prompt.tokens} prompt tokens, at most {out} more")


async def _require_window(context: Context, limit: int, total: int) -> None:
    """A short prompt with all the rest of `total` tokens as output, dropped at its first token."""
    prompt = await context.prompts.fit(min(limit - 2, 64))
    out = total - prompt.tokens if prompt.exact else total - prompt.tokens - 16
    body = context.completion(prompt.text, out)
    try:
        async with context.api.events("/v1/completions", body) as events:
            said = "no token" if not await first_delta(events) else ""
    except StreamRefused as refused:
        _taken(refused.reply, f"prompt {prompt.tokens} + max_tokens {out} of {limit}")
        said = status_and_code(refused.reply)
    require(
        not said,
        observed=f"{said} with prompt {prompt.tokens} + max_tokens {out} of {limit}",
        expected=f"up to {limit} tokens of prompt and output are accepted",
        remedy=SEE_LOG,
    )


def _taken(reply: Reply, what: str) -> Reply:
    """The answer to a request within the limit that the node lists: a refusal as too long belies the list."""
    require(
        reply.status not in TOO_LONG,
        observed=f"{what}: {status_and_code(reply)}",
        expected="accepted, for it is within the limit that /v1/models lists",
        remedy="the node lists a longer max_model_len than it takes, and clients that trust it are refused: lower what "
        "is listed, or give the KV cache room for it",
    )
    return answered(reply, what)


class OverLengthParameters(Parameters):
    max_prompt_tokens: int = Field(default=262_144, ge=16)
    """On nodes with a longer limit the check is skipped: the bodies would be too large to send."""


async def over_length(context: Context, parameters: OverLengthParameters) -> Outcome:
    limit = known_limit(context)
    if 2 * limit > parameters.max_prompt_tokens:
        most = format_whole(parameters.max_prompt_tokens)
        skip(f"twice the limit of {format_whole(limit)} is over {most} tokens")
    restarts = await engine_restarts(context)
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
    cut = await truncation(context, limit) if context.is_kvops else {}
    await _require_alive(context, restarts)
    marks = ", cuts on request are as marked" if cut and cut.get("offered", True) else ""
    return Outcome(
        verdict="pass",
        observed=", ".join(f"{n}: {s}" for n, s in seen.items()) + f"{marks}; alive after",
        expected="400 with the limit, or a marked truncation",
        n=len(probes) + 1,
        evidence={"limit": limit, "answers": seen, "exact": by_one.exact, "truncation": cut},
    )


def _require_refused_or_marked(context: Context, name: str, reply: Reply, limit: int) -> None:
    expected = "400 context_length_exceeded with prompt_tokens and limit, or a marked truncation"
    if reply.status == 200:
        require(
            HEADER in reply.headers and bool(reply.usage.get("truncated_tokens")),
            observed=f"{name} was answered 200 without a mark: {reply.usage.get('prompt_tokens')} prompt tokens",
            expected=expected,
            remedy="over-length prompts are cut or overrun silently: set runtime.over_length: reject",
        )
        return
    require(
        reply.status in TOO_LONG and bool(reply.error),
        observed=f"{name}: {status_and_code(reply)}",
        expected=expected,
        remedy=SEE_LOG
        if reply.status >= 500
        else "clients cannot tell that the prompt is too long: refuse it with "
        "400 and an error object, at the node or the gateway",
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
    now = await engine_restarts(context)
    require(
        restarts == now,
        observed=f"engine restarts went from {restarts} to {now}",
        expected="no restart",
        remedy="over-length input kills the engine: see kvops node logs",
    )


NEAR_LIMIT = Check(
    id="resp.near_limit",
    title="Near the limit",
    purpose="A prompt close to the advertised limit is read whole; a window filled exactly is accepted.",
    parameters=NearLimitParameters,
    run=near_limit,
    area="V2",
    typical=15.0,
)
OVER_LENGTH = Check(
    id="resp.over_length",
    title="Over the limit",
    purpose="One token or twice too much is refused with the numbers or cut with a mark, and the node lives on.",
    parameters=OverLengthParameters,
    run=over_length,
    area="V10",
    typical=3.0,
)

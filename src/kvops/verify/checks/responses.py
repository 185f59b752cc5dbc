"""Are plain and multi-turn answers right in form, and do their token counts add up?"""

from __future__ import annotations

from pydantic import Field

from kvops.verify.api import Reply, token_count
from kvops.verify.check import Check, Outcome, Parameters, require, skip, warn
from kvops.verify.context import Context
from kvops.verify.judge import Fault, answer_faults, answered, require_none, usage_faults

PROMPT = "The three primary colours are"
QUESTION = [{"role": "user", "content": "Name a colour."}]
SECRET = "7314"
FACT = {"role": "user", "content": f"The code of my locker is {SECRET}."}
RECALL = {"role": "user", "content": "What is the code of my locker?"}
SMALLEST_WINDOW = 384
"""Tokens; the two turns need about a hundred, several hundred with a byte-level tokenizer."""


class ShortParameters(Parameters):
    max_tokens: int = Field(default=16, ge=2, le=512)


async def short(context: Context, parameters: ShortParameters) -> Outcome:
    limit = parameters.max_tokens
    requests = {
        "/v1/completions": context.completion(PROMPT, limit),
        "/v1/chat/completions": context.chat(QUESTION, limit),
    }
    seen = {}
    for path, body in requests.items():
        reply = answered(await context.api.post(path, body), path)
        faults = [
            Fault(f"{path}: {fault.says}", fault.remedy) for fault in answer_faults(reply, limit)
        ]
        require_none(faults, expected="text, a finish_reason and a usage that adds up")
        seen[path] = {
            "usage": _counts(reply), "finish_reason": reply.choice["finish_reason"], "said": reply.said.kind,
        }  # fmt: skip
    wordless = [
        f"{path}: {one['said']} alone" for path, one in seen.items() if one["said"] != "text"
    ]
    return Outcome(
        verdict="pass",
        observed="; ".join([*(_in_words(entry["usage"]) for entry in seen.values()), *wordless]),
        expected=f"prompt + completion (≤ {limit}) = total",
        unit="tokens",
        n=len(seen),
        evidence=seen,
    )


def _counts(reply: Reply) -> dict[str, int]:
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    return {name: reply.usage[name] for name in names}


def _in_words(usage: dict[str, int]) -> str:
    return "{prompt_tokens} + {completion_tokens} = {total_tokens}".format(**usage)


class MultiTurnParameters(Parameters):
    max_tokens: int = Field(default=24, ge=2, le=256)


async def multi_turn(context: Context, parameters: MultiTurnParameters) -> Outcome:
    window = context.facts.max_model_len
    if window is not None and window < SMALLEST_WINDOW:
        skip(f"two turns may not fit into a window of {window} tokens")
    path, limit = "/v1/chat/completions", parameters.max_tokens
    first = answered(await context.api.post(path, context.chat([FACT], limit)), "turn one")
    history = [FACT, {"role": "assistant", "content": first.answer}, RECALL]
    second = answered(await context.api.post(path, context.chat(history, limit)), "turn two")
    for turn in (first, second):
        require_none(usage_faults(turn.usage, limit), expected="usage that adds up")
    before, after = first.usage["prompt_tokens"], second.usage["prompt_tokens"]
    evidence = {"prompt_tokens": [before, after], "recalled": SECRET in second.answer}
    require(
        after > before,
        observed=f"{after} prompt tokens in turn two, {before} in turn one",
        expected="the first turn is part of the second's prompt",
        remedy="the node drops earlier turns: look at its over_length policy and chat template",
        **evidence,
    )
    cached = _cached_tokens(second)
    if cached == 0:
        warn(
            observed="turn two found nothing of turn one in the prefix cache",
            expected="cached_tokens > 0",
            remedy="is kv_cache.prefix_caching on, and turn one longer than a block?",
            cached_tokens=0,
            **evidence,
        )
    reuse = "cache use not exposed" if cached is None else f"{cached} from the cache"
    return Outcome(
        verdict="pass",
        observed=f"prompt grew from {before} to {after}, {reuse}",
        expected="a longer prompt, turn one from the cache",
        unit="tokens",
        n=2,
        evidence=evidence | {"cached_tokens": cached},
    )


def _cached_tokens(reply: Reply) -> int | None:
    details = reply.usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return token_count(cached)


SHORT = Check(
    id="resp.short",
    title="Short answers",
    purpose="A completion and a chat completion are well formed and their usage adds up.",
    parameters=ShortParameters,
    run=short,
    area="V2",
    typical=2.0,
)
MULTI_TURN = Check(
    id="resp.multi_turn",
    title="Two turns",
    purpose="Turn one is in the context of turn two, and is served from the prefix cache.",
    parameters=MultiTurnParameters,
    run=multi_turn,
    area="V2",
    typical=3.0,
)

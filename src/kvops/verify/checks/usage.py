"""Is what the node counts, and clients pay for, what it has read and written?"""

from __future__ import annotations

from typing import Any

import msgspec
from pydantic import Field

from kvops.verify.api import Reply, token_count
from kvops.verify.check import Check, Outcome, Parameters, fail
from kvops.verify.context import Context
from kvops.verify.judge import Fault, answered, require_none, usage_faults
from kvops.verify.prompts import CountsNothing, Prompt
from kvops.verify.streamed import read_stream

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
RETOKENIZED_SLACK = 0.25
"""Text that is tokenized again may come out in other tokens than those that were generated."""
_HONEST = "usage as the node's own tokenizer counts, streamed or not"
COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")


_PROMPT = "clients are billed and trimmed by prompt_tokens, and it counts others than there are: do not go live with it"
_COMPLETION = "clients are billed by completion_tokens, and it counts others than there are: do not go live with it"
_STREAMED = "streaming clients are billed otherwise than the rest: do not go live with it"


class UsageParameters(Parameters):
    prompt_tokens: tuple[int, ...] = Field(default=(40, 120, 300), min_length=2, max_length=16)
    """Lengths of the prompts; those over half the window are left out."""
    max_tokens: int = Field(default=12, ge=2, le=256)


class Seen(msgspec.Struct, frozen=True):
    prompt: Prompt
    reply: Reply


async def usage(context: Context, parameters: UsageParameters) -> Outcome:
    try:
        seen = await _plain(context, parameters)
    except CountsNothing as nothing:
        fail(observed=nothing.reason, expected=_HONEST, remedy=_PROMPT)
    faults = [fault for one in seen for fault in _plain_faults(context, one, parameters.max_tokens)]
    faults += growth_faults([one.reply.usage.get("prompt_tokens") for one in seen])
    faults += await _written_faults(context, seen[0].reply)
    faults += await _streamed_faults(context, seen[0], parameters.max_tokens)
    faults += await _chat_faults(context, seen[0].prompt, parameters.max_tokens)
    exact = all(one.prompt.exact for one in seen)
    require_none(
        faults,
        expected=_HONEST,
        n=len(seen) + 2,
    )
    how = "as the tokenizer counts" if exact else "growing with the prompt; no tokenizer to ask"
    return Outcome(
        verdict="pass",
        observed=f"prompts of {', '.join(str(one.reply.usage['prompt_tokens']) for one in seen)} tokens {how}",
        expected=_HONEST,
        unit="tokens",
        n=len(seen) + 2,
        evidence={
            "usage": [{name: one.reply.usage.get(name) for name in COUNTS} for one in seen],
            "tokenizer": exact,
        },
    )


def _body(context: Context, text: str, max_tokens: int) -> dict[str, Any]:
    """Where the engine can be told to go past the end of the text, the length of the answer is known."""
    extra = {"ignore_eos": True} if context.facts.engine in ("kvops", "vllm") else {}
    return context.completion(text, max_tokens, **extra)


async def _plain(context: Context, parameters: UsageParameters) -> list[Seen]:
    window = context.facts.max_model_len or 2048
    lengths = [n for n in parameters.prompt_tokens if n <= window // 2] or [window // 4]
    seen = []
    for length in lengths:
        prompt = await context.prompts.fit(length)
        body = _body(context, prompt.text, parameters.max_tokens)
        reply = answered(await context.api.post(COMPLETIONS, body), f"a prompt of {length} tokens")
        seen.append(Seen(prompt, reply))
    return seen


def _plain_faults(context: Context, seen: Seen, max_tokens: int) -> list[Fault]:
    usage = seen.reply.usage
    faults = usage_faults(usage, max_tokens)
    if seen.prompt.exact and usage.get("prompt_tokens") != seen.prompt.tokens:
        said = (
            f"{usage.get('prompt_tokens')} prompt tokens, the tokenizer counts {seen.prompt.tokens}"
        )
        faults.append(Fault(said, _PROMPT))
    written = usage.get("completion_tokens")
    if seen.reply.choice.get("finish_reason") == "length" and written != max_tokens:
        faults.append(
            Fault(f"finish_reason length with {written} of {max_tokens} tokens", _COMPLETION)
        )
    return faults


def growth_faults(counts: list[Any]) -> list[Fault]:
    """Prompts that get longer must count more; also where no tokenizer can be asked."""
    known = [count for count in map(token_count, counts) if count is not None]
    if known == counts == sorted(set(known)):
        return []
    return [Fault(f"prompt tokens of ever longer prompts: {counts}", _PROMPT)]


async def _written_faults(context: Context, reply: Reply) -> list[Fault]:
    """The answer's text, tokenized again, is near what was counted; the tokenizer may be the node's only one."""
    counted = reply.usage.get("completion_tokens")
    # Bytes that are no character are shown as one that is many tokens.
    whole = bool(reply.answer) and "\ufffd" not in reply.answer
    again = await context.prompts.tokenized(reply.answer) if whole else None
    if again is None or not isinstance(counted, int):
        return []
    # Ends of text and halves of characters are counted, and in no text: the node may count more, hardly less.
    if again > counted * (1 + RETOKENIZED_SLACK) + 2:
        return [Fault(f"{counted} completion tokens for a text of {again}", _COMPLETION)]
    return []


async def _streamed_faults(context: Context, plain: Seen, max_tokens: int) -> list[Fault]:
    body = _body(context, plain.prompt.text, max_tokens)
    body |= {"stream_options": {"include_usage": True}}
    streamed = await read_stream(context.api, COMPLETIONS, body)
    same = COUNTS if streamed.text == plain.reply.answer else COUNTS[:1]
    return [
        Fault(
            f"{name} {streamed.usage.get(name)} streamed, {plain.reply.usage.get(name)} plain",
            _STREAMED,
        )
        for name in same
        if streamed.usage.get(name) != plain.reply.usage.get(name)
    ]


async def _chat_faults(context: Context, prompt: Prompt, max_tokens: int) -> list[Fault]:
    """A chat's prompt is its messages and the template around them: never less than the text alone."""
    body = context.chat([{"role": "user", "content": prompt.text}], max_tokens)
    reply = answered(await context.api.post(CHAT, body), "a chat")
    faults = usage_faults(reply.usage, max_tokens)
    counted = reply.usage.get("prompt_tokens")
    if prompt.exact and isinstance(counted, int) and counted < prompt.tokens:
        faults.append(Fault(f"{counted} prompt tokens for a message of {prompt.tokens}", _PROMPT))
    return faults


USAGE = Check(
    id="resp.usage",
    title="Honest counts",
    purpose="Tokens in usage are those of the node's tokenizer, and the same streamed or not.",
    parameters=UsageParameters,
    run=usage,
    area="V2",
    typical=4.0,
)

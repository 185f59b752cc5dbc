"""Judgements that several checks share: is this answer whole, do its counts add up, is this error well formed."""

from __future__ import annotations

from typing import Any

from kvops.verify.api import Reply
from kvops.verify.check import fail, inconclusive, skip
from kvops.verify.context import Context

FINISH_REASONS = ("stop", "length")
BUSY = (429, 503)
SEE_LOG = "see kvops node logs for the request's error"


def answered(reply: Reply, what: str) -> Reply:
    """`reply` when it is a 200 with a JSON object; a busy node leaves the check open, all else fails it."""
    if reply.status in BUSY:
        inconclusive(
            f"{what} was refused with {status_and_code(reply)}",
            expected="200",
            remedy="the node is busy, draining or not ready: run the gate on an idle node",
        )
    if reply.status != 200 or not reply.body:
        fail(observed=f"{what}: {status_and_code(reply)}", expected="200 and JSON", remedy=SEE_LOG)
    return reply


def status_and_code(reply: Reply) -> str:
    """`400 invalid_request`; never the message, which may quote the prompt."""
    code = reply.error.get("code")
    return f"{reply.status} {code}" if isinstance(code, str | int) else str(reply.status)


def usage_faults(usage: dict[str, Any], max_tokens: int) -> list[str]:
    """What is wrong with a `usage` object of a request that asked for at most `max_tokens`."""
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    counts = [usage.get(name) for name in names]
    prompt, completion, total = counts
    if not isinstance(prompt, int) or not isinstance(completion, int) or not isinstance(total, int):
        return [f"usage lacks {n}" for n, c in zip(names, counts, strict=True) if c is None] or [
            "usage holds something other than whole numbers"
        ]
    faults = []
    if total != prompt + completion:
        faults.append(f"total {total} is not prompt {prompt} + completion {completion}")
    if not 1 <= completion <= max_tokens:
        faults.append(f"{completion} completion tokens with max_tokens {max_tokens}")
    if prompt < 1:
        faults.append(f"{prompt} prompt tokens")
    return faults


def answer_faults(reply: Reply, max_tokens: int) -> list[str]:
    """What is wrong with a finished completion or chat completion."""
    faults = usage_faults(reply.usage, max_tokens)
    finish = reply.choice.get("finish_reason")
    if finish not in FINISH_REASONS:
        faults.append(f"finish_reason {finish!r}")
    if not reply.answer:
        faults.append("empty text")
    if not isinstance(reply.body.get("id"), str):
        faults.append("no id")
    return faults


def error_faults(reply: Reply, wanted: tuple[int, ...], code: str | None = None) -> list[str]:
    """What is wrong with an answer that should be an OpenAI-shaped error with one of these statuses."""
    faults = []
    if reply.status not in wanted:
        faults.append(f"status {reply.status} instead of {' or '.join(map(str, wanted))}")
    if not isinstance(reply.error.get("message"), str) or not reply.error["message"]:
        faults.append("no error.message")
    if not isinstance(reply.error.get("type"), str):
        faults.append("no error.type")
    if code is not None and reply.error.get("code") != code:
        faults.append(f"error.code {reply.error.get('code')!r} instead of {code!r}")
    return faults


def known_limit(context: Context) -> int:
    """Tokens of prompt + output that the node advertises; without one the check is skipped."""
    limit = context.facts.max_model_len
    if limit is None:
        skip("the node does not say its max_model_len in /v1/models")
    return limit

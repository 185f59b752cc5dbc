"""Judgements that several checks share: is this answer whole, do its counts add up, is this error well formed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from kvops.verify.api import Reply, token_count
from kvops.verify.check import Value, fail, inconclusive, skip
from kvops.verify.context import Context

FINISH_REASONS = ("stop", "length")
BUSY = (429, 503)
SEE_LOG = "see kvops node logs for the request's error"
_SERVER_ERROR = 500
_NAMED = 4
"""Faults that an observed value names; the evidence has all."""
_LONGEST = 80
"""Characters of a node's own word that are repeated."""
_NEXT = 2
"""Different next steps that a remedy names."""
_BY_STATUS = {
    401: "give a key that this node knows: --api-key-file",
    403: "the key may not do this: --api-key-file with one that may",
    404: "the route or the model is not there: is the address right, with no path behind the port?",
    413: "something before the node takes only smaller bodies: raise its limit",
}


class Fault(msgspec.Struct, frozen=True):
    """What is wrong with an answer, and what to do about just that."""

    says: str
    remedy: str


def says(faults: Sequence[Fault]) -> list[str]:
    return [fault.says for fault in faults]


def require_none(faults: Sequence[Fault], *, expected: Value, **evidence: Any) -> None:
    """Raises a failing Finding that names the faults, with the next steps of just these."""
    if faults:
        fail(
            observed="; ".join(says(faults)[:_NAMED]),
            expected=expected,
            remedy=advice(faults),
            faults=says(faults),
            **evidence,
        )


def advice(faults: Iterable[Fault]) -> str:
    return "; ".join(list(dict.fromkeys(fault.remedy for fault in faults))[:_NEXT])


def answered(reply: Reply, what: str) -> Reply:
    """`reply` when it is a 200 with a JSON object; a busy node leaves the check open, all else fails it."""
    if reply.status in BUSY:
        inconclusive(
            f"{what} was refused with {status_and_code(reply)}",
            expected="200",
            remedy="the node is busy, draining or not ready: run the gate on an idle node",
        )
    if reply.status != 200 or not reply.body:
        fault = f", but {reply.json_fault}" if reply.status == 200 else ""
        fail(
            observed=f"{what}: {status_and_code(reply)}{fault}",
            expected="200 and JSON",
            remedy=_refused(reply),
        )
    return reply


def _refused(reply: Reply) -> str:
    if reply.status == 200:
        if reply.text.startswith("{"):
            return (
                "clients break at such an answer: does something before the node change or cut it?"
            )
        return (
            "what answers speaks no JSON: is something else before the node, or the address wrong?"
        )
    if reply.status >= _SERVER_ERROR:
        return SEE_LOG
    return _BY_STATUS.get(
        reply.status,
        "the node refuses a request that every OpenAI client may send: send it with curl and read error.message",
    )


def status_and_code(reply: Reply) -> str:
    """`400 invalid_request`; never the message, which may quote the prompt."""
    code = reply.error.get("code")
    return (
        f"{reply.status} {code!s:.{_LONGEST}}" if isinstance(code, str | int) else str(reply.status)
    )


def usage_faults(usage: dict[str, Any], max_tokens: int) -> list[Fault]:
    """What is wrong with a `usage` object of a request that asked for at most `max_tokens`."""
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    prompt, completion, total = (token_count(usage.get(name)) for name in names)
    if prompt is None or completion is None or total is None:
        missing = [f"usage lacks {name}" for name in names if usage.get(name) is None]
        remedy = "clients cannot count what they use: let the engine, or the gateway before it, send usage whole"
        return [
            Fault(one, remedy)
            for one in missing or ["usage holds something other than numbers of tokens"]
        ]
    faults = []
    if total != prompt + completion:
        remedy = "do not bill or trim by total_tokens: its parts may be right; report the wrong sum as a defect"
        faults.append(
            Fault(f"total {total} is not prompt {prompt} + completion {completion}", remedy)
        )
    if not 1 <= completion <= max_tokens:
        remedy = "max_tokens is not kept, or tokens are counted wrongly: do not bill by completion_tokens"
        faults.append(Fault(f"{completion} completion tokens with max_tokens {max_tokens}", remedy))
    if prompt < 1:
        remedy = "prompts are not counted: do not bill or trim by prompt_tokens"
        faults.append(Fault(f"{prompt} prompt tokens", remedy))
    return faults


def answer_faults(reply: Reply, max_tokens: int) -> list[Fault]:
    """What is wrong with a finished completion or chat completion."""
    faults = usage_faults(reply.usage, max_tokens)
    finish = reply.choice.get("finish_reason")
    if finish not in FINISH_REASONS:
        remedy = "clients cannot tell a whole answer from a cut one: the engine has to say stop or length"
        faults.append(Fault(f"finish_reason {finish!r:.{_LONGEST}}", remedy))
    if not reply.said:
        remedy = (
            "the node answers without a word: are model and chat template those that were meant?"
        )
        faults.append(Fault("empty text", remedy))
    if not isinstance(reply.body.get("id"), str):
        faults.append(Fault("no id", "answers cannot be told apart in logs: report the defect"))
    return faults


def error_faults(reply: Reply, wanted: tuple[int, ...], code: str | None = None) -> list[Fault]:
    """What is wrong with an answer that should be an OpenAI-shaped error with one of these statuses."""
    faults = []
    if reply.status not in wanted:
        wrong = f"status {reply.status} instead of {' or '.join(map(str, wanted))}"
        faults.append(Fault(wrong, _instead(reply.status)))
    shape = "clients cannot tell what was wrong: give errors the form of OpenAI's, at the node or the gateway"
    if not isinstance(reply.error.get("message"), str) or not reply.error["message"]:
        faults.append(Fault("no error.message", shape))
    if not isinstance(reply.error.get("type"), str):
        faults.append(Fault("no error.type", shape))
    if code is not None and reply.error.get("code") != code:
        faults.append(
            Fault(f"error.code {reply.error.get('code')!r:.{_LONGEST}} instead of {code!r}", shape)
        )
    return faults


def _instead(status: int) -> str:
    """What follows from this status where a refusal was due."""
    if status >= _SERVER_ERROR:
        return f"clients retry what can never work, and alerts ring for it; {SEE_LOG}"
    if status < 300:
        return "clients do not learn of their mistakes: check requests before the node until it refuses them"
    return "clients take it for another mistake than theirs: report the wrong status as a defect"


def known_limit(context: Context) -> int:
    """Tokens of prompt + output that the node advertises; without one the check is skipped."""
    limit = context.facts.max_model_len
    if limit is None:
        skip("the node does not say its max_model_len in /v1/models")
    return limit

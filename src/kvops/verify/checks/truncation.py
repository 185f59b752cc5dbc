"""Where a node cuts prompts on request: is what it says to have cut away really gone, and counted right?"""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

from kvops.verify.api import Reply, delta_text, first_choice, json_object, token_count
from kvops.verify.check import require
from kvops.verify.context import Context
from kvops.verify.judge import answered

HEADER = "x-kvops-truncated"
COMPLETIONS = "/v1/completions"
KEPT = 96
"""Tokens that are left of each prompt, so that reading it costs little."""
EARLY_STOPS = ("e", "a", "o", "n")
"""Ends an answer soon for which room was asked in full."""
DELTAS = 12
"""Of the answer to the question: the needle would be among the first."""
EXPECTED = "removed + kept tokens are those of the prompt; nothing of the removed part is known"
REMEDY = "answers are about another text than the client thinks: set runtime.over_length: reject"


class Cut(msgspec.Struct, frozen=True):
    """A prompt whose needle is in the part that the policy removes."""

    policy: str
    text: str


def cuts(filler: str, needle: str) -> list[Cut]:
    fact = f" The code is {needle}. "
    question = " What is the code? The code is"
    return [
        Cut("truncate_head", fact + filler + question),
        Cut("truncate_tail", question + filler + fact),
    ]


async def truncation(context: Context, limit: int) -> dict[str, Any]:
    """Tokens removed by policy. Raises a failing Finding where a cut is not what it is said to be.

    `{"offered": False}` from a node that knows no `over_length` in a request.
    """
    removed: dict[str, Any] = {}
    needle = secrets.token_hex(4)
    filler = await context.prompts.fit(limit + limit // 2)
    for cut in cuts(filler.text, needle):
        reply = await context.api.post(COMPLETIONS, _body(context, cut, limit, stop=EARLY_STOPS))
        if reply.status in (400, 422) and reply.error.get("code") != "context_length_exceeded":
            return {"offered": False}
        counted = await context.prompts.tokenized(cut.text)
        _require(cut.policy, cut_faults(answered(reply, cut.policy), counted, limit))
        said = await _first_words(context, _body(context, cut, limit))
        _require(cut.policy, ["the answer knows the removed part"] if needle in said else [])
        removed[cut.policy] = reply.usage["truncated_tokens"]
    return removed


def _body(context: Context, cut: Cut, limit: int, **fields: Any) -> dict[str, Any]:
    room = max(1, limit - KEPT)
    return context.completion(cut.text, room, over_length=cut.policy, **fields)


async def _first_words(context: Context, body: dict[str, Any]) -> str:
    said: list[str] = []
    async with context.api.events(COMPLETIONS, body) as events:
        async for payload in events:
            said.append(delta_text(first_choice(json_object(payload))))
            if len(said) >= DELTAS:
                break
    return "".join(said)


def cut_faults(reply: Reply, counted: int | None, limit: int) -> list[str]:
    """What is wrong with an answer to a prompt that had to be cut; `counted`: its tokens before."""
    names = ("truncated_tokens", "prompt_tokens")
    removed, kept = (token_count(reply.usage.get(name)) for name in names)
    if not removed or kept is None:
        return [", ".join(f"{name} {reply.usage.get(name)!r}" for name in names)]
    faults = []
    if reply.headers.get(HEADER) != str(removed):
        faults.append(f"{HEADER} {reply.headers.get(HEADER)!r}, usage says {removed}")
    if counted is not None and removed + kept != counted:
        faults.append(f"{removed} removed + {kept} kept, the prompt has {counted} tokens")
    if kept >= limit:
        faults.append(f"{kept} tokens kept in a window of {limit}")
    return faults


def _require(policy: str, faults: list[str]) -> None:
    require(
        not faults,
        observed=f"{policy}: {'; '.join(faults)}",
        expected=EXPECTED,
        remedy=REMEDY,
        faults=faults,
    )

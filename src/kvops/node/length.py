"""What happens to a prompt that does not fit: refused with numbers, or cut where the policy says, and said so."""

from __future__ import annotations

from dataclasses import dataclass

from kvops.config.schema import OverLength
from kvops.errors import ContextLengthExceeded

_OPEN_END_ROOM = 256


@dataclass(frozen=True)
class Fitted:
    tokens: tuple[int, ...]
    max_tokens: int
    removed: int
    """Prompt tokens cut away by the policy."""


def fit(
    prompt: list[int], asked: int | None, usual: int | None, limit: int, policy: OverLength
) -> Fitted:
    """`asked`: output tokens the client set; `usual`: the default, None for all that is left of `limit`.

    Raises ContextLengthExceeded.
    """
    wanted = asked or 1
    if policy != "reject" and len(prompt) + wanted > limit > wanted:
        room = limit - (asked or min(usual or _OPEN_END_ROOM, limit // 2))
        kept = _cut(prompt, room, policy)
        return _fitted(kept, asked, usual, limit, len(prompt) - len(kept))
    if len(prompt) + wanted > limit:
        raise _exceeded(len(prompt), asked, limit, policy)
    return _fitted(prompt, asked, usual, limit, 0)


def _fitted(
    prompt: list[int], asked: int | None, usual: int | None, limit: int, removed: int
) -> Fitted:
    left = limit - len(prompt)
    return Fitted(tuple(prompt), asked or min(usual or left, left), removed)


def _cut(prompt: list[int], room: int, policy: OverLength) -> list[int]:
    if policy == "truncate_head":
        return prompt[-room:]
    if policy == "truncate_tail":
        return prompt[:room]
    head = (room + 1) // 2
    return prompt[:head] + prompt[len(prompt) - (room - head) :]


def _exceeded(
    prompt_tokens: int, asked: int | None, limit: int, policy: OverLength
) -> ContextLengthExceeded:
    output = f" and {asked} output tokens" if asked else ""
    return ContextLengthExceeded(
        f"the context length is {limit} tokens; this request has {prompt_tokens} prompt tokens{output}.",
        param="max_tokens" if asked and prompt_tokens < limit else "prompt",
        hint=_remedy(asked or 1, limit, policy),
        extra={"prompt_tokens": prompt_tokens, "limit": limit, "max_tokens": asked},
    )


def _remedy(wanted: int, limit: int, policy: OverLength) -> str:
    """Only what would help: no cut of the prompt makes room for an output as long as the context."""
    if wanted >= limit:
        return f"Ask for less than {limit} output tokens with max_tokens."
    if policy == "reject":
        return "Shorten the prompt, lower max_tokens, or send over_length: truncate_middle."
    return "Shorten the prompt or lower max_tokens."

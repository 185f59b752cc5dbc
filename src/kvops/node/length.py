"""What happens to a prompt that does not fit: refused with numbers, or cut where the policy says, and said so.

Of a chat only what the messages say is cut, never the frame that the model was trained on; a system message is cut
only when all the others are gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from kvops.config.schema import OverLength
from kvops.errors import ContextLengthExceeded, KvQuotaExceeded

_OPEN_END_ROOM = 256


class Worth(IntEnum):
    CONTENT = 0
    SYSTEM = 1
    FRAME = 2


@dataclass(frozen=True)
class Segment:
    """A run of prompt tokens that are cut, or kept, for the same reason."""

    tokens: Sequence[int]
    worth: Worth = Worth.CONTENT


@dataclass(frozen=True)
class Fitted:
    tokens: tuple[int, ...]
    max_tokens: int
    removed: int
    """Prompt tokens cut away by the policy."""


def limit_of(
    prompt: int, asked: int | None, model: int, quota: int | None, policy: OverLength
) -> int:
    """Tokens that a request of `prompt` tokens may have. `quota`: what its tenant's blocks can hold.

    Raises KvQuotaExceeded for one that the model could serve, but the tenant's quota never can.
    """
    if quota is None or quota >= model:
        return model
    needed = prompt + (asked or 1)
    if needed <= quota or (policy != "reject" and (asked or 1) < quota):
        return quota
    if needed <= model:
        raise KvQuotaExceeded(
            f"this request needs room for {needed} tokens; the KV quota of this key's tenant holds {quota}.",
            hint="Shorten it; waiting does not help.",
        )
    return model


def fit(
    prompt: Sequence[Segment], asked: int | None, usual: int | None, limit: int, policy: OverLength
) -> Fitted:
    """`asked`: output tokens the client set; `usual`: the default, None for all that is left of `limit`.

    Raises ContextLengthExceeded.
    """
    length = sum(len(segment.tokens) for segment in prompt)
    wanted = asked or 1
    if length + wanted <= limit:
        return _fitted(_joined(prompt), asked, usual, limit, 0)
    if policy == "reject" or wanted >= limit:
        raise _exceeded(length, asked, limit, policy)
    room = limit - (asked or min(usual or _OPEN_END_ROOM, limit // 2))
    worth = _least_worth(prompt, room)
    if worth is None:
        raise _exceeded(length, asked, limit, policy)
    kept = _cut(prompt, length - room, policy, worth)
    return _fitted(kept, asked, usual, limit, length - len(kept))


def _fitted(
    prompt: list[int], asked: int | None, usual: int | None, limit: int, removed: int
) -> Fitted:
    left = limit - len(prompt)
    return Fitted(tuple(prompt), asked or min(usual or left, left), removed)


def _least_worth(prompt: Sequence[Segment], room: int) -> Worth | None:
    """Up to which worth segments must be cut so that the rest fits; None if the frame alone is too long."""
    for worth in (Worth.CONTENT, Worth.SYSTEM):
        if sum(len(one.tokens) for one in prompt if one.worth > worth) < room:
            return worth
    return None


def _cut(prompt: Sequence[Segment], excess: int, policy: OverLength, worth: Worth) -> list[int]:
    """Take `excess` tokens out of the segments up to `worth`, as if these were one text."""
    length = sum(len(one.tokens) for one in prompt if one.worth <= worth)
    first = _first_removed(length, excess, policy)
    kept: list[int] = []
    at = 0
    for one in prompt:
        if one.worth > worth:
            kept += one.tokens
            continue
        start, stop = max(first - at, 0), max(first + excess - at, 0)
        kept += [*one.tokens[:start], *one.tokens[stop:]]
        at += len(one.tokens)
    return kept


def _first_removed(length: int, excess: int, policy: OverLength) -> int:
    left = length - excess
    return {"truncate_head": 0, "truncate_tail": left}.get(policy, (left + 1) // 2)


def _joined(prompt: Sequence[Segment]) -> list[int]:
    return [token for segment in prompt for token in segment.tokens]


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

"""Prompts of a wanted length in tokens, each with a mark of its own so that no prefix cache shortens it."""

from __future__ import annotations

import math
import secrets

import msgspec

from kvops.verify.api import Api, token_count

_WORD = " one"
_SMALL, _LARGE = 32, 96
_CORRECTIONS = 8
_FEWEST_PER_WORD = 0.1
"""Tokens; a node that counts fewer does not count, and a prompt that is long by its counts would fill the memory."""
_NO_COUNTS = (
    "see resp.short and resp.usage: prompts of a wanted length need a node that counts tokens"
)


class CannotFit(Exception):
    """No prompt of the wanted length can be made for this node, so a check that needs one is left open."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


class CountsNothing(CannotFit):
    """Longer prompts do not count more, or nothing is counted at all."""


class Prompt(msgspec.Struct, frozen=True):
    text: str
    tokens: int
    exact: bool
    """Counted by the node's own tokenizer; otherwise extrapolated from two short counts."""


class PromptFitter:
    """Fits texts to lengths with the node's `/v1/tokenize`, else with `usage` of two short completions."""

    def __init__(self, api: Api, model: str) -> None:
        self._api = api
        self._model = model

    async def fit(self, tokens: int) -> Prompt:
        """The longest repeated-word prompt of at most `tokens` tokens.

        Raises CountsNothing when the node reports no counts, CannotFit when `tokens` is too small for any prompt.
        """
        mark = f"Run {secrets.token_hex(4)}:"
        small = await self._count(mark + _WORD * _SMALL)
        large = await self._count(mark + _WORD * _LARGE)
        per_word = (large - small) / (_LARGE - _SMALL)
        if per_word < _FEWEST_PER_WORD:
            raise CountsNothing(
                f"the node counts {small} tokens for {_SMALL} words and {large} for {_LARGE}",
                _NO_COUNTS,
            )
        words = math.floor((tokens - small) / per_word) + _SMALL
        if words < 1:
            raise CannotFit(
                f"no prompt fits into {tokens} tokens: one of {_SMALL} words has {small}",
                "the node's window, or a length in the profile, is too small for its tokenizer",
            )
        if not await self._tokenizes():
            estimate = round(small + (words - _SMALL) * per_word)
            return Prompt(mark + _WORD * words, estimate, exact=False)
        return await self._correct(mark, words, tokens)

    async def _correct(self, mark: str, words: int, tokens: int) -> Prompt:
        for _ in range(_CORRECTIONS):
            text = mark + _WORD * words
            count = await self._count(text)
            if count <= tokens:
                return Prompt(text, count, exact=True)
            words = max(1, words - max(1, (count - tokens) // 2))
        raise CannotFit(
            f"no prompt could be fitted to {tokens} tokens in {_CORRECTIONS} tries: the node's counts do not add up",
            _NO_COUNTS,
        )

    async def _tokenizes(self) -> bool:
        return await self.tokenized("a") is not None

    async def _count(self, text: str) -> int:
        count = await self.tokenized(text)
        return await self._used(text) if count is None else count

    async def tokenized(self, text: str) -> int | None:
        """Tokens of `text` by the node's own tokenizer; None where it has no route to it.

        Both kvops and vLLM answer `{"count": n}`; vLLM's path has no `/v1`.
        """
        for path in ("/v1/tokenize", "/tokenize"):
            reply = await self._api.post(path, {"model": self._model, "prompt": text})
            count = token_count(reply.body.get("count"))
            if reply.status == 200 and count is not None:
                return count
        return None

    async def _used(self, text: str) -> int:
        body = {"model": self._model, "prompt": text, "max_tokens": 1}
        reply = await self._api.post("/v1/completions", body)
        if reply.status != 200:
            raise CannotFit(
                f"a request whose tokens were to be counted was answered {reply.status}",
                "run the gate on an idle node; see kvops node logs for the request's error",
            )
        count = token_count(reply.usage.get("prompt_tokens"))
        if count is None:
            said = reply.json_fault or "its usage has no such number"
            raise CountsNothing(
                f"the node has no tokenizer to ask and counts nothing: {said}", _NO_COUNTS
            )
        return count

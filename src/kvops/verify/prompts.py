"""Prompts of a wanted length in tokens, each with a mark of its own so that no prefix cache shortens it."""

from __future__ import annotations

import secrets

import msgspec

from kvops.verify.api import Api

_WORD = " one"
_SMALL, _LARGE = 32, 96
_CORRECTIONS = 8


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

        Raises ValueError when the node reports no counts or `tokens` is too small for any prompt.
        """
        mark = f"Run {secrets.token_hex(4)}:"
        small = await self._count(mark + _WORD * _SMALL)
        large = await self._count(mark + _WORD * _LARGE)
        per_word = (large - small) / (_LARGE - _SMALL)
        if per_word <= 0:
            raise ValueError("the node counts no tokens for longer prompts")
        words = int((tokens - small) / per_word) + _SMALL
        if words < 1:
            raise ValueError(f"no prompt fits into {tokens} tokens")
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
            words -= max(1, (count - tokens) // 2)
        raise ValueError(f"no prompt could be fitted to {tokens} tokens")

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
            count = reply.body.get("count")
            if reply.status == 200 and isinstance(count, int):
                return count
        return None

    async def _used(self, text: str) -> int:
        body = {"model": self._model, "prompt": text, "max_tokens": 1}
        count = (await self._api.post("/v1/completions", body)).usage.get("prompt_tokens")
        if not isinstance(count, int):
            raise ValueError("the node neither tokenizes nor reports usage")
        return count

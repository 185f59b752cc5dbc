"""What the model without weights says to each request, token by token, and how it can be wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle, islice

from kvops.models.tokenizer import Tokenizer
from kvops.node.wire import Submit
from kvops.testing.words import Script, asked_key, found_value

SHORT_SIGHT = 900
"""Prompt tokens beyond which `wrong_beyond_length` finds no number."""
CROWD = 3
"""Other requests beside which `wrong_under_load` finds no number."""


class Mind:
    def __init__(self, tokenizer: Tokenizer, defects: frozenset[str]) -> None:
        self.vocabulary = tokenizer.vocab_size
        self._tokenizer = tokenizer
        self._script = Script(tokenizer)
        self._defects = defects
        self._remembered: str | None = None
        """A number of an earlier prompt."""

    def answer(self, submit: Submit, others: int) -> Iterator[int | None]:
        """Tokens, then None at the end, which is left out or put off where the request asks for it."""
        prompt, params = submit.prompt_token_ids, submit.params
        own = self._said(prompt, others)
        yield from own
        more = cycle(self._script.words(prompt))
        if params.ignore_eos:
            yield from more
        yield from islice(more, max(0, params.min_tokens - len(own)))
        while True:
            yield None

    def _said(self, prompt: Sequence[int], others: int) -> list[int]:
        if "wrong_beyond_length" in self._defects and len(prompt) > SHORT_SIGHT:
            return self._script.words(prompt)
        if "wrong_under_load" in self._defects and others > CROWD:
            return self._script.words(prompt)
        if "answers_of_others" in self._defects:
            return self._mixed_up(prompt)
        return self._script.answer(prompt)

    def _mixed_up(self, prompt: Sequence[int]) -> list[int]:
        """Who asks for a number that is not there gets one of another request."""
        text = self._tokenizer.decode(prompt)
        key = asked_key(text)
        value = found_value(text, key) if key else None
        if key and value is None and self._remembered:
            return self._script.encode(f"The number is {self._remembered}.")
        self._remembered = value or self._remembered
        return self._script.answer(prompt)

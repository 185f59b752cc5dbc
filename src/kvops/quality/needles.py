"""Numbers hidden in long prompts, asked for as `kvops load run needle_recall` does, but straight from the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from kvops.errors import KvopsError
from kvops.load.haystack import SHORTEST, Prompt
from kvops.load.needle import Cell, plan, prompt_for, score
from kvops.models.chat import ChatTemplate
from kvops.models.tokenizer import Tokenizer

LENGTHS = (512, 1024, 2048)
DEPTHS = (0, 25, 50, 75, 100)
ANSWER_TOKENS = 32
_SEED = 0

Read = Callable[[str], list[int]]
"""Token ids of a request whose only message is this text."""


class Question(msgspec.Struct, frozen=True):
    cell: Cell
    prompt: Prompt
    token_ids: tuple[int, ...]

    def found_in(self, answer: str) -> bool:
        return score(self.cell, self.prompt, answer, (), exact=True).found


def questions(tokenizer: Tokenizer, template: ChatTemplate, context: int) -> list[Question]:
    """At each depth of each length that leaves room for an answer in the model's `context`, else of the longest."""
    room = context - ANSWER_TOKENS
    lengths = [length for length in LENGTHS if length <= room] or [room]
    read = _reader(tokenizer, template)
    return list(_asked(read, lengths)) if lengths[0] >= SHORTEST else []


def _reader(tokenizer: Tokenizer, template: ChatTemplate) -> Read:
    def read(text: str) -> list[int]:
        return template.encode([{"role": "user", "content": text}], tokenizer)

    try:
        read("")
    except (
        KvopsError
    ):  # it has no template, or one that refuses such a message: asked in plain text
        return tokenizer.encode_prompt
    return read


def _asked(read: Read, lengths: Sequence[int]) -> Iterator[Question]:
    for cell in plan(_SEED, lengths, DEPTHS, repeats=1):
        if cell.depth is None:
            continue  # the control is about other requests' numbers, and here are none
        try:
            prompt = prompt_for(cell, _SEED, lambda text: len(read(text)))
        except ValueError:  # a tokenizer whose tokens are so short that no document fits
            continue
        yield Question(cell, prompt, tuple(read(prompt.text)))

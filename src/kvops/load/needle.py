"""What the recall scenario asks and how an answer is scored: the value is in the answer, or it is not."""

from __future__ import annotations

import http.client
import random
from collections.abc import Sequence
from typing import Any

import msgspec

from kvops.load.client import Client
from kvops.load.exchange import Exchange
from kvops.load.haystack import Count, Needle, Prompt, build, make_needle
from kvops.load.records import NeedleScore

CHARACTERS_PER_TOKEN = 4.5
"""Of plain English, for nodes without a tokenizer route."""
TEMPLATE_TOKENS = 32
"""What a chat template adds, about."""


class Cell(msgspec.Struct, frozen=True):
    """One prompt to ask. `depth` None is the negative control: the needle is left out."""

    length: int
    depth: float | None
    repeat: int
    needle: Needle

    @property
    def name(self) -> str:
        where = "control" if self.depth is None else f"depth {self.depth:g}"
        return f"needle {self.length} {where}"


def plan(seed: int, lengths: Sequence[int], depths: Sequence[float], repeats: int) -> list[Cell]:
    """All cells in a fixed order, short prompts first: a control per length, then its depths."""
    source = random.Random(f"needles {seed}")
    places = [(depth, repeat) for depth in depths for repeat in range(repeats)]
    return [
        Cell(length, depth, repeat, make_needle(source))
        for length in sorted(set(lengths))
        for depth, repeat in [(None, 0), *places]
    ]


def prompt_for(cell: Cell, seed: int, count: Count) -> Prompt:
    """The cell's own document: the same for the same seed, unlike every other cell's."""
    source = random.Random(f"document {seed} {cell.length} {cell.depth} {cell.repeat}")
    return build(source, cell.needle, cell.length, cell.depth, count)


def score(
    cell: Cell, prompt: Prompt, answer: str, all_values: Sequence[str], *, exact: bool
) -> NeedleScore:
    """A control finds something when any value of the run is in its answer: other requests leaked into it."""
    wanted = all_values if cell.depth is None else [cell.needle.value]
    digits = answer.replace(",", "").replace(" ", "")
    return NeedleScore(
        found=any(value in answer or value in digits for value in wanted),
        length=cell.length,
        depth=cell.depth,
        actual_depth=None if prompt.depth is None else round(prompt.depth, 2),
        needle_at=prompt.needle_at,
        counted_tokens=prompt.tokens,
        exact=exact,
        repeat=cell.repeat,
    )


def not_recalled(got: Exchange) -> str:
    """Why a number that was asked for is none of the answer's."""
    if got.text or not got.said:
        return "the number was not recalled"
    return f"the answer is {got.said.kind} alone, without a word: a longer one may come to it, --max-tokens"


def counter(client: Client, model: str) -> tuple[Count, bool]:
    """Counts the tokens of a one-message chat, and whether the count is the node's own.

    Without a tokenizer route the count is an estimate from the number of characters.
    """
    for path in ("/v1/tokenize", "/tokenize"):
        if _ask(client, path, model, "") is not None:
            return _Exact(client, path, model), True
    return lambda text: TEMPLATE_TOKENS + int(len(text) / CHARACTERS_PER_TOKEN), False


class _Exact:
    def __init__(self, client: Client, path: str, model: str) -> None:
        self._client, self._path, self._model = client, path, model

    def __call__(self, text: str) -> int:
        count = _ask(self._client, self._path, self._model, text)
        if count is None:
            raise ValueError(f"{self._path} stopped counting tokens")
        return count


def _ask(client: Client, path: str, model: str, text: str) -> int | None:
    messages = [{"role": "user", "content": text}]
    try:
        answer = client.fetch("POST", path, {"model": model, "messages": messages}, timeout=60)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    body: Any = answer.json() if answer.status == 200 else None
    return body["count"] if isinstance(body, dict) and isinstance(body.get("count"), int) else None

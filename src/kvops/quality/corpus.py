"""The text that perplexity is measured on: Python's own language reference, which is there wherever kvops runs.

It differs between versions of Python, so it is named together with its digest.
"""

from __future__ import annotations

import hashlib
import platform

import msgspec

from kvops.models.tokenizer import Tokenizer

LONGEST_WINDOW = 2048


class Corpus(msgspec.Struct, frozen=True):
    name: str
    text: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def shipped_corpus() -> Corpus:
    from pydoc_data.topics import topics

    text = "\n".join(text for _, text in sorted(topics.items()))
    return Corpus(f"Python {platform.python_version()} language reference", text)


def windows(
    corpus: Corpus, tokenizer: Tokenizer, tokens: int, context: int
) -> tuple[tuple[int, ...], ...]:
    """Pieces spread evenly over the corpus, in which `tokens` tokens are predicted; fewer if it has no more.

    None is longer than the model's `context`, or than LONGEST_WINDOW.
    """
    ids = tokenizer.encode(corpus.text, special=False)
    bos = (tokenizer.bos_token_id,) if tokenizer.adds_bos else ()
    room = len(ids) - 1
    wanted = min(tokens, room)
    count = -(-wanted // min(LONGEST_WINDOW, context))
    pieces = []
    for number in range(count):
        size = wanted * (number + 1) // count - wanted * number // count
        at = room * number // count
        pieces.append((*bos, *ids[at : at + size + 1 - len(bos)]))
    return tuple(pieces)

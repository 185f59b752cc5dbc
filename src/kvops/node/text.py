"""From token ids to the text a client sees: incremental detokenizing, stop strings held back across deltas.

Nothing of a stop string is ever emitted, not even its first characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class TokenStream(Protocol):
    """The incremental detokenizer of one sequence (`Tokenizer.stream()`)."""

    def push(self, token_ids: Sequence[int]) -> str: ...

    def flush(self) -> str: ...


class Transcript:
    """The text of one choice. `push` token ids; what it returns may be sent. After `stopped`, push no more."""

    def __init__(self, stream: TokenStream, stops: Sequence[str] = (), min_tokens: int = 0) -> None:
        self._stream = stream
        self._stops = tuple(stops)
        self._min_tokens = min_tokens
        self._held = ""
        self.tokens = 0
        self.decoded = 0
        """Characters decoded so far: where the next token's text starts."""
        self.emitted = 0
        """Characters returned so far."""
        self.stopped = False

    def push(self, token_id: int) -> str:
        self.tokens += 1
        return self._advance(self._stream.push([token_id]))

    def finish(self) -> str:
        """The rest, once the sequence ended by itself: bytes of an unfinished character, text held back."""
        if self.stopped:
            return ""
        sent = self._advance(self._stream.flush())
        if self.stopped:
            return sent
        rest, self._held = self._held, ""
        self.emitted += len(rest)
        return sent + rest

    def _advance(self, piece: str) -> str:
        self.decoded += len(piece)
        pending = self._held + piece
        ready = len(pending) if self.tokens < self._min_tokens else self._cut(pending)
        self._held = "" if self.stopped else pending[ready:]
        self.emitted += ready
        return pending[:ready]

    def _cut(self, pending: str) -> int:
        """How many characters may go out: up to the first stop string, or up to what may become one."""
        found = [at for at in (pending.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.stopped = True
            return min(found)
        return len(pending) - max((_overlap(pending, stop) for stop in self._stops), default=0)


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper start of `stop`."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0

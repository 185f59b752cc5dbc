"""The text side of one choice: token deltas in, what may be shown out, with its log probabilities in step."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from kvops.models.tokenizer import Tokenizer
from kvops.node.generation import Event, Generation
from kvops.node.text import Transcript
from kvops.node.wire import FinishReason, TokenDelta, TokenLogprobs


@dataclass(frozen=True)
class TokenEntry:
    token_id: int
    offset: int
    """Characters of text before this token."""
    logprobs: TokenLogprobs


@dataclass(frozen=True)
class Piece:
    """What one event adds to the answer of one choice."""

    index: int
    text: str
    entries: list[TokenEntry]
    finish: FinishReason | None


@dataclass
class Reply:
    """A choice's text so far. `done` once it has a finish reason; later deltas are then not of interest."""

    index: int
    transcript: Transcript
    text: str = ""
    entries: list[TokenEntry] = field(default_factory=list)
    finish: FinishReason | None = None
    _pending: deque[TokenEntry] = field(default_factory=deque)

    def take(self, delta: TokenDelta) -> Piece:
        text = "".join(self._read(delta))
        if self.transcript.stopped:
            self.finish = "stop"
        elif delta.finish is not None:
            text += self.transcript.finish()
            self.finish = "stop" if self.transcript.stopped else delta.finish
        released = self._release()
        self.text += text
        self.entries += released
        return Piece(self.index, text, released, self.finish)

    def _read(self, delta: TokenDelta) -> list[str]:
        parts = []
        for at, token_id in enumerate(delta.token_ids):
            if delta.logprobs:
                self._pending.append(
                    TokenEntry(token_id, self.transcript.decoded, delta.logprobs[at])
                )
            parts.append(self.transcript.push(token_id))
            if self.transcript.stopped:
                break
        return parts

    def _release(self) -> list[TokenEntry]:
        """Entries whose text went out; all of them at an end without a stop string."""
        everything = self.finish is not None and not self.transcript.stopped
        released = []
        while self._pending and (everything or self._pending[0].offset < self.transcript.emitted):
            released.append(self._pending.popleft())
        return released


class Replies:
    """All choices of one generation."""

    def __init__(
        self, generation: Generation, tokenizer: Tokenizer, stops: list[str], min_tokens: int
    ) -> None:
        self._generation = generation
        self.by_index = [
            Reply(choice.index, Transcript(tokenizer.stream(), stops, min_tokens))
            for choice in generation.choices
        ]

    def take(self, event: Event) -> Piece | None:
        """None for a choice that already ended at a stop string."""
        reply = self.by_index[event.choice.index]
        if reply.finish is not None:
            return None
        piece = reply.take(event.delta)
        self._generation.tell(event.choice, reply.transcript.tokens, reply.finish)
        return piece

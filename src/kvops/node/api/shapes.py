"""The OpenAI shapes of an answer: completions and chat completions, whole or in chunks."""

from __future__ import annotations

import time
from typing import Any, Protocol

from kvops.models.tokenizer import Tokenizer
from kvops.node.api.replies import Piece, Reply, TokenEntry
from kvops.node.generation import Generation


def usage(generation: Generation, removed: int) -> dict[str, Any]:
    """`truncated_tokens` is there only where the over-length policy cut the prompt."""
    prompt, output = generation.prompt_tokens, generation.output_tokens
    counts: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": generation.cached_tokens},
    }
    return counts | ({"truncated_tokens": removed} if removed else {})


def token_name(tokenizer: Tokenizer, token_id: int) -> str:
    """A token's text; `bytes:\\x…` for one that is no UTF-8 by itself, as OpenAI names it."""
    data = tokenizer.token_bytes(token_id)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return _byte_name(data)


def _byte_name(data: bytes) -> str:
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _alternatives(tokenizer: Tokenizer, entry: TokenEntry) -> dict[str, float]:
    """Likeliest first, always with the chosen token, and each under a name of its own: two tokens may have one text."""
    chosen = (entry.token_id, entry.logprobs.logprob)
    values = dict([*entry.logprobs.top, chosen])
    names = {entry.token_id: token_name(tokenizer, entry.token_id)}
    for token in values:
        if token not in names:
            taken, data = set(names.values()), tokenizer.token_bytes(token)
            possible = (token_name(tokenizer, token), _byte_name(data), f"token_id:{token}")
            names[token] = next(name for name in possible if name not in taken)
    return {names[token]: value for token, value in values.items()}


class Shape(Protocol):
    def opening(self, index: int) -> dict[str, Any] | None:
        """A chunk to send before a choice's first piece."""
        ...

    def chunk(self, piece: Piece) -> dict[str, Any]: ...

    def usage_chunk(self, counts: dict[str, Any]) -> dict[str, Any]: ...

    def whole(self, replies: list[Reply], counts: dict[str, Any]) -> dict[str, Any]: ...


class _Envelope:
    kind_whole: str
    kind_chunk: str

    def __init__(
        self, answer_id: str, model: str, tokenizer: Tokenizer, *, logprobs: bool, usage_field: bool
    ) -> None:
        self._fields = {"id": answer_id, "created": int(time.time()), "model": model}
        self._tokenizer = tokenizer
        self._logprobs = logprobs
        self._usage_field = usage_field

    def usage_chunk(self, counts: dict[str, Any]) -> dict[str, Any]:
        return self._fields | {"object": self.kind_chunk, "choices": [], "usage": counts}

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        body = self._fields | {"object": self.kind_chunk, "choices": [choice]}
        return body | ({"usage": None} if self._usage_field else {})

    def _whole(self, choices: list[dict[str, Any]], counts: dict[str, Any]) -> dict[str, Any]:
        return self._fields | {"object": self.kind_whole, "choices": choices, "usage": counts}


class CompletionShape(_Envelope):
    kind_whole = kind_chunk = "text_completion"

    def opening(self, index: int) -> dict[str, Any] | None:
        return None

    def chunk(self, piece: Piece) -> dict[str, Any]:
        return self._chunk(self._choice(piece.index, piece.text, piece.entries, piece.finish))

    def whole(self, replies: list[Reply], counts: dict[str, Any]) -> dict[str, Any]:
        return self._whole(
            [self._choice(r.index, r.text, r.entries, r.finish) for r in replies], counts
        )

    def _choice(
        self, index: int, text: str, entries: list[TokenEntry], finish: str | None
    ) -> dict[str, Any]:
        logprobs = self._table(entries) if self._logprobs else None
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}

    def _table(self, entries: list[TokenEntry]) -> dict[str, Any]:
        return {
            "tokens": [token_name(self._tokenizer, entry.token_id) for entry in entries],
            "token_logprobs": [entry.logprobs.logprob for entry in entries],
            "top_logprobs": [_alternatives(self._tokenizer, entry) for entry in entries],
            "text_offset": [entry.offset for entry in entries],
        }


class ChatShape(_Envelope):
    kind_whole = "chat.completion"
    kind_chunk = "chat.completion.chunk"

    def opening(self, index: int) -> dict[str, Any] | None:
        return self._chunk(
            {
                "index": index,
                "delta": {"role": "assistant", "content": ""},
                "logprobs": None,
                "finish_reason": None,
            }
        )

    def chunk(self, piece: Piece) -> dict[str, Any]:
        return self._chunk(
            {
                "index": piece.index,
                "delta": {"content": piece.text} if piece.text else {},
                "logprobs": self._content(piece.entries)
                if self._logprobs and piece.entries
                else None,
                "finish_reason": piece.finish,
            }
        )

    def whole(self, replies: list[Reply], counts: dict[str, Any]) -> dict[str, Any]:
        return self._whole([self._choice(reply) for reply in replies], counts)

    def _choice(self, reply: Reply) -> dict[str, Any]:
        return {
            "index": reply.index,
            "message": {"role": "assistant", "content": reply.text, "refusal": None},
            "logprobs": self._content(reply.entries) if self._logprobs else None,
            "finish_reason": reply.finish,
        }

    def _content(self, entries: list[TokenEntry]) -> dict[str, Any]:
        rows = [
            self._token(entry.token_id, entry.logprobs.logprob)
            | {"top_logprobs": [self._token(token, value) for token, value in entry.logprobs.top]}
            for entry in entries
        ]
        return {"content": rows, "refusal": None}

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        data = self._tokenizer.token_bytes(token_id)
        return {
            "token": token_name(self._tokenizer, token_id),
            "logprob": logprob,
            "bytes": list(data),
        }

"""How few tokens a text can have. What is many times too long is refused by that: reading 4 MB takes seconds."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from typing import Any

import tokenizers

from kvops.models.token_bytes import BYTE_ALPHABET

_SPLITTERS = {"ByteLevel", "Split", "Digits", "Metaspace"}


class LeastTokens:
    """Sound for tokenizers of which it is known which characters they leave out; of others nothing is claimed."""

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        steps = list(_steps(inner.normalizer))
        self._composes = any(step["type"] == "NFC" for step in steps)
        self._left_out = _left_out(inner)
        known = self._left_out is not None and _only_splits(inner, steps)
        self._longest = _longest(inner) if known else None

    def of(self, text: str) -> int:
        """A number of tokens that `text` surely has; 0 where nothing is known."""
        if self._longest is None or (self._composes and not unicodedata.is_normalized("NFC", text)):
            return 0
        read = len(text) - sum(text.count(character) for character in self._left_out or ())
        return -(-read // self._longest)


def _longest(inner: tokenizers.Tokenizer) -> int:
    """Characters that one token stands for at most. Spelled in bytes a token is at least as long as in characters."""
    return max(map(len, inner.get_vocab(with_added_tokens=True)), default=1)


def _left_out(inner: tokenizers.Tokenizer) -> tuple[str, ...] | None:
    """Characters for which the vocabulary has no token; None where these are not known.

    Of a character of several bytes at least one that continues it must have a token: then it is not left out.
    """
    if any(step["type"] == "ByteLevel" for step in _steps(inner.pre_tokenizer)):
        spelled = {byte: letter for letter, byte in BYTE_ALPHABET.items()}
    elif getattr(inner.model, "byte_fallback", False):
        spelled = {byte: f"<0x{byte:02X}>" for byte in range(256)}
    else:
        return None
    missing = [byte for byte in range(0xC0) if inner.token_to_id(spelled[byte]) is None]
    return None if any(byte >= 0x80 for byte in missing) else tuple(map(chr, missing))


def _only_splits(inner: tokenizers.Tokenizer, normalizing: list[dict[str, Any]]) -> bool:
    """Whether no step before the vocabulary takes characters away."""
    return (
        isinstance(inner.model, tokenizers.models.BPE)
        and all(_only_adds(step) for step in normalizing)
        and all(
            step["type"] in _SPLITTERS and step.get("behavior") != "Removed"
            for step in _steps(inner.pre_tokenizer)
        )
        and not any(
            token.lstrip or token.rstrip for token in inner.get_added_tokens_decoder().values()
        )
    )


def _only_adds(step: dict[str, Any]) -> bool:
    """NFC joins characters too, and is looked at with the text."""
    if step["type"] == "Replace":
        return bool(step["pattern"] == {"String": " "} and step["content"] == "▁")
    return step["type"] in ("NFC", "Prepend")


def _steps(part: Any) -> Iterator[dict[str, Any]]:
    """The steps of a normalizer or pre-tokenizer, those inside a sequence one by one."""
    waiting = [] if part is None else [json.loads(part.__getstate__())]
    while waiting:
        step = waiting.pop(0)
        if step["type"] == "Sequence":
            waiting += step.get("normalizers") or step.get("pretokenizers") or []
        else:
            yield step

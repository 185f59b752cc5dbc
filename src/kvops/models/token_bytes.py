"""The bytes that each token of a vocabulary stands for: byte-level BPE and SentencePiece with byte fallback."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import tokenizers

from kvops.errors import ModelUnsupported

_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """Character → byte of the GPT-2 byte-level alphabet (openai/gpt-2 `bytes_to_unicode`): printable bytes
    stand for themselves, the others for the characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    shifted = {chr(0x100 + place): byte for place, byte in enumerate(others)}
    return {chr(byte): byte for byte in printable} | shifted


BYTE_ALPHABET = _byte_alphabet()


class TokenBytes:
    """Looks a token's bytes up, and remembers them. Raises ModelUnsupported for another kind of vocabulary."""

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        self._inner = inner
        self._added = {
            number: token.content.encode()
            for number, token in inner.get_added_tokens_decoder().items()
        }
        steps = _decoder_steps(inner)
        kinds = [step.get("type") for step in steps]
        self._spell: Callable[[str], bytes] = (
            _spell_byte_level if "ByteLevel" in kinds else _spell_sentencepiece
        )
        self.strips_first_space = any(
            step.get("type") == "Strip" and step.get("start") for step in steps
        )
        self._seen: dict[int, bytes] = {}

    def of(self, token_id: int) -> bytes:
        piece = self._seen.get(token_id)
        if piece is None:
            piece = self._seen[token_id] = self._look_up(token_id)
        return piece

    def _look_up(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id]
        token = self._inner.id_to_token(token_id) if 0 <= token_id < 2**32 else None
        return b"" if token is None else self._spell(token)


def _decoder_steps(inner: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    state = inner.decoder.__getstate__() if inner.decoder is not None else b"{}"
    decoder: dict[str, Any] = json.loads(state)
    steps: list[dict[str, Any]] = (
        decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder]
    )
    kinds = {str(step.get("type")) for step in steps}
    if not kinds & {"ByteLevel", "ByteFallback"}:
        raise ModelUnsupported(
            f"the tokenizer decodes with {', '.join(sorted(kinds))}",
            hint="supported are ByteLevel, ByteFallback",
        )
    return steps


def _spell_byte_level(token: str) -> bytes:
    try:
        return bytes([BYTE_ALPHABET[character] for character in token])
    except KeyError:
        return token.encode()


def _spell_sentencepiece(token: str) -> bytes:
    fallback = _FALLBACK.fullmatch(token)
    return bytes([int(fallback[1], 16)]) if fallback else token.replace("▁", " ").encode()

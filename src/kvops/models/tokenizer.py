"""Text to token ids and back, the same for tokenizer.json and for the vocabulary inside a GGUF file.

Decoding goes through bytes, so a stream never shows half a character and its parts always add up to `decode`.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tokenizers

from kvops.errors import InvalidRequest, ModelCorrupt, ModelUnsupported
from kvops.models.gguf_header import read_gguf_header
from kvops.models.gguf_tokenizer import build_gguf_tokenizer
from kvops.models.hf_model import MAX_JSON_BYTES, read_json_if_there
from kvops.models.token_bytes import TokenBytes

# One text is read at a time: the library's own threads would only cost, and warn after a fork.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# Ends of a turn that some models forget to list beside their end of text.
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>")
_TEXT_ENDS = ("<|endoftext|>", "<|end_of_text|>")


class Tokenizer:
    """Immutable and safe to share between threads."""

    def __init__(
        self,
        inner: tokenizers.Tokenizer,
        *,
        eos_token_ids: Iterable[int | None],
        bos_token_id: int | None,
        add_bos: bool,
    ) -> None:
        self._inner = inner
        self._plain = _reading_no_special(inner)
        self._bytes = TokenBytes(inner)
        self.special_tokens: dict[str, int] = {
            token.content: number
            for number, token in inner.get_added_tokens_decoder().items()
            if token.special
        }
        self.eos_token_ids = frozenset(
            token_id for token_id in eos_token_ids if token_id is not None
        )
        self.bos_token_id = bos_token_id
        self.adds_bos = add_bos and bos_token_id is not None
        """Whether the model was trained with a BOS token before plain text; chat templates write their own."""
        self.vocab_size: int = inner.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Token ids, without BOS. `special` reads strings such as <|im_start|> as tokens, else as plain text.

        Raises InvalidRequest for text that is no Unicode.
        """
        reader = self._inner if special else self._plain
        try:
            # The batch call lets other threads run and computes no offsets, which makes it four times faster.
            ids: list[int] = reader.encode_batch_fast([text], add_special_tokens=False)[0].ids
        except TypeError as error:
            raise InvalidRequest(
                "the text holds half of a surrogate pair, which is no character"
            ) from error
        return ids

    def encode_prompt(self, text: str, *, special: bool = False) -> list[int]:
        """As `encode`, with BOS in front where the model's metadata says so: for plain completions."""
        ids = self.encode(text, special=special)
        bos = self.bos_token_id
        return [bos, *ids] if self.adds_bos and bos is not None and ids[:1] != [bos] else ids

    def decode(self, ids: Iterable[int]) -> str:
        """Text without special tokens; bytes that are no UTF-8 become U+FFFD, unknown ids nothing."""
        decoder = self.stream()
        return decoder.push(ids) + decoder.flush()

    def token_text(self, token_id: int) -> str:
        """What one token shows as, special tokens by their name."""
        return self.token_bytes(token_id).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token, of a special token its name; empty for an unknown id."""
        return self._bytes.of(token_id)

    def stream(self) -> IncrementalDecoder:
        return IncrementalDecoder(self._bytes, frozenset(self.special_tokens.values()))


class IncrementalDecoder:
    """Decodes one output as it grows. All it returns, in order, is `decode` of all ids pushed."""

    def __init__(self, pieces: TokenBytes, skipped: frozenset[int]) -> None:
        self._pieces, self._skipped = pieces, skipped
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = pieces.strips_first_space

    def push(self, ids: Iterable[int]) -> str:
        """The text that became certain with these ids; may be empty."""
        data = b"".join(
            self._pieces.of(token_id) for token_id in ids if token_id not in self._skipped
        )
        if self._strip and data:
            data, self._strip = data.removeprefix(b" "), False
        return self._utf8.decode(data)

    def flush(self) -> str:
        """The rest at the end of the output: U+FFFD for a character that was never finished."""
        return self._utf8.decode(b"", final=True)


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a .gguf file or of a folder in HF layout. Raises ModelCorrupt, ModelUnsupported."""
    return _from_folder(path) if path.is_dir() else _from_gguf(path)


def _from_gguf(path: Path) -> Tokenizer:
    metadata = read_gguf_header(path).metadata
    inner, adds_bos = build_gguf_tokenizer(metadata)
    names = ("eos", "eot", "eom")
    ends = {_token_id(metadata.get(f"tokenizer.ggml.{name}_token_id"), inner) for name in names}
    ends |= _known_ends(inner, _TURN_ENDS + _TEXT_ENDS)
    bos = _token_id(metadata.get("tokenizer.ggml.bos_token_id"), inner)
    return Tokenizer(inner, eos_token_ids=ends, bos_token_id=bos, add_bos=adds_bos)


def _from_folder(folder: Path) -> Tokenizer:
    inner = _load_inner(folder / "tokenizer.json")
    settings = read_json_if_there(folder / "tokenizer_config.json")
    bos = inner.token_to_id(token_name(settings.get("bos_token")) or "")
    listed = [
        read_json_if_there(folder / name).get("eos_token_id")
        for name in ("generation_config.json", "config.json")
    ]
    ends = {
        _token_id(number, inner)
        for ids in listed
        for number in (ids if isinstance(ids, list) else [ids])
    }
    ends |= {inner.token_to_id(token_name(settings.get("eos_token")) or "")} | _known_ends(
        inner, _TURN_ENDS
    )
    first = inner.encode("a", add_special_tokens=True).ids[:1]
    adds_bos = settings.get("add_bos_token", bos is not None and first == [bos])
    return Tokenizer(inner, eos_token_ids=ends, bos_token_id=bos, add_bos=adds_bos is True)


def _load_inner(path: Path) -> tokenizers.Tokenizer:
    if not path.is_file():
        raise ModelUnsupported(
            f"{path.parent.name} has no tokenizer.json",
            hint="save a fast tokenizer into the folder",
        )
    if path.stat().st_size > MAX_JSON_BYTES:
        raise ModelCorrupt(f"tokenizer.json is larger than {MAX_JSON_BYTES} bytes")
    try:
        inner = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ModelCorrupt(f"tokenizer.json cannot be read: {str(error)[:200]}") from error
    inner.no_truncation()
    inner.no_padding()
    return inner


def _reading_no_special(inner: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """The same tokenizer, sharing its vocabulary, that reads the names of special tokens as plain text."""
    plain = tokenizers.Tokenizer(inner.model)
    for part in ("normalizer", "pre_tokenizer"):
        if getattr(inner, part) is not None:
            setattr(plain, part, getattr(inner, part))
    plain.add_tokens([token for _, token in sorted(inner.get_added_tokens_decoder().items())])
    plain.encode_special_tokens = True
    return plain


def token_name(entry: Any) -> str | None:
    """`bos_token` and its like are a string or an object with `content`."""
    name = entry.get("content") if isinstance(entry, dict) else entry
    return name if isinstance(name, str) else None


def _token_id(value: Any, inner: tokenizers.Tokenizer) -> int | None:
    known = isinstance(value, int) and 0 <= value < 2**31 and inner.id_to_token(value) is not None
    return int(value) if known else None


def _known_ends(inner: tokenizers.Tokenizer, names: tuple[str, ...]) -> set[int | None]:
    added = inner.get_added_tokens_decoder()
    return {number for number, token in added.items() if token.content in names}

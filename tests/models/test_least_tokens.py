"""A bound from below of a text's tokens: never above what the tokenizer counts, and near it for the longest tokens."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from kvops.models.token_bytes import BYTE_ALPHABET
from kvops.models.tokenizer import Tokenizer, load_tokenizer

LONG = "abcdefgh"


def byte_level(*, without: str = "", **parts: object) -> Tokenizer:
    """`ab`, `abcd` and `abcdefgh` are the only tokens of several letters."""
    letters = [letter for letter in BYTE_ALPHABET if letter not in without]
    pairs = [
        ("a", "b"),
        ("c", "d"),
        ("e", "f"),
        ("g", "h"),
        ("ab", "cd"),
        ("ef", "gh"),
        ("abcd", "efgh"),
    ]
    words = [*letters, *(left + right for left, right in pairs)]
    vocabulary = {word: number for number, word in enumerate(words)}
    inner = tokenizers.Tokenizer(models.BPE(vocabulary, pairs))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    for name, part in parts.items():
        setattr(inner, name, part)
    return made(inner)


def sentencepiece() -> Tokenizer:
    words = [*(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "▁a"]
    vocabulary = {word: number for number, word in enumerate(words)}
    inner = tokenizers.Tokenizer(models.BPE(vocabulary, [("▁", "a")], byte_fallback=True))
    inner.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    inner.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return made(inner)


def made(inner: tokenizers.Tokenizer) -> Tokenizer:
    return Tokenizer(inner, eos_token_ids=[], bos_token_id=None, add_bos=False)


MADE: dict[str, Callable[[], Tokenizer]] = {
    "byte level": byte_level,
    "composing": lambda: byte_level(normalizer=normalizers.NFC()),
    "without some letters": lambda: byte_level(without="xyz"),
    "sentencepiece": sentencepiece,
}


@pytest.mark.parametrize("kind", MADE)
@settings(max_examples=200, deadline=None)
@given(text=st.text() | st.text(alphabet="abcdefghxyz ▁\u0301\u0323\u1100\u1161\u11a8e"))
def test_a_text_never_has_fewer(kind: str, text: str) -> None:
    tokenizer = MADE[kind]()
    assert tokenizer.least_tokens(text) <= len(tokenizer.encode(text, special=False))


def test_a_text_of_the_longest_token_is_counted_to_the_token() -> None:
    tokenizer = byte_level()
    assert (
        tokenizer.least_tokens(LONG * 50) == len(tokenizer.encode(LONG * 50, special=False)) == 50
    )
    assert tokenizer.least_tokens("") == 0


def test_what_the_vocabulary_leaves_out_does_not_count() -> None:
    assert byte_level(without="xyz").least_tokens("x" * 1000 + LONG) == 1
    assert byte_level().least_tokens("x" * 1000 + LONG) > 100


def test_what_may_be_joined_is_not_claimed() -> None:
    tokenizer = byte_level(normalizer=normalizers.NFC())
    assert tokenizer.least_tokens(unicodedata.normalize("NFD", "ộ") * 99) == 0
    assert tokenizer.least_tokens("ộ" * 99) > 0


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": normalizers.Strip()},
        {"normalizer": normalizers.Replace(tokenizers.Regex(" +"), "▁")},
        {"pre_tokenizer": pre_tokenizers.WhitespaceSplit()},
        {"pre_tokenizer": pre_tokenizers.Sequence(
            [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel()]
        )},
    ],
)  # fmt: skip
def test_a_step_that_may_take_characters_away_is_not_claimed(parts: dict[str, object]) -> None:
    assert byte_level(**parts).least_tokens(LONG * 50) == 0


def test_a_token_that_swallows_blanks_is_not_claimed() -> None:
    inner = byte_level()._inner
    inner.add_special_tokens([AddedToken("<end>", lstrip=True)])
    assert made(inner).least_tokens(LONG * 50) == 0


def test_of_a_whole_model(tiny_model: Path) -> None:
    tokenizer = load_tokenizer(tiny_model)
    text = "the lazy dog jumps " * 500
    assert 0 < tokenizer.least_tokens(text) <= len(tokenizer.encode(text, special=True))

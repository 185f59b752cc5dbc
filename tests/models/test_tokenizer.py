"""Token ids are those of the model's own tokenizer, and a stream of text is whole characters that add up."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from kvops.errors import InvalidRequest, ModelCorrupt, ModelUnsupported
from kvops.models.store import resolve
from kvops.models.token_bytes import BYTE_ALPHABET
from kvops.models.tokenizer import Tokenizer, load_tokenizer
from tests.models.gguf_files import to_gguf
from tests.tiny import make_tiny_model

TEXTS = (
    "Hello, world!",
    "It's 2026, don't you'll I'VE: 3.14159 and 1,000,000",
    "你好，世界。日本語のテキスト 한국어",
    "🎉👩‍👩‍👧‍👦🇩🇪 e\u0301 Ελληνικά Ø ﬁ ½ ²",
    "def f(x):\n\treturn  x + 1\r\n\r\n    # comment   \n",
    "   leading, trailing   ",
    "\n\n\n \t \u00a0\u3000",
    "<|im_start|>user\nhi<|im_end|>\n",
    "a_b-c/d\\e [x] {y} <z> \"q\" `t` $5 €6 a+b=c",
    "\x00\x01\x7f",
    "",
)  # fmt: skip


@pytest.fixture(scope="module")
def tiny(tiny_model: Path) -> Tokenizer:
    return load_tokenizer(tiny_model)


def pieces(tokenizer: Tokenizer, ids: list[int], size: int = 1) -> Iterator[str]:
    stream = tokenizer.stream()
    for start in range(0, len(ids), size):
        yield stream.push(ids[start : start + size])
    yield stream.flush()


@pytest.mark.parametrize("text", TEXTS)
def test_folder_and_gguf_agree_and_round_trip(
    text: str, tiny_model: Path, tiny: Tokenizer, tmp_path: Path
) -> None:
    inner = tokenizers.Tokenizer.from_file(str(tiny_model / "tokenizer.json"))
    from_gguf = load_tokenizer(to_gguf(tiny_model, tmp_path / "m.gguf"))
    for special in (True, False):
        ids = tiny.encode(text, special=special)
        assert from_gguf.encode(text, special=special) == ids
        assert tiny.decode(ids) == inner.decode(ids, skip_special_tokens=True)
    assert tiny.encode(text, special=True) == inner.encode(text, add_special_tokens=False).ids
    assert tiny.decode(tiny.encode(text, special=False)) == text


def test_special_names_are_tokens_or_plain_text(tiny: Tokenizer) -> None:
    start, end = tiny.special_tokens["<|im_start|>"], tiny.special_tokens["<|im_end|>"]
    ids = tiny.encode("<|im_start|>a<|im_end|>", special=True)
    assert (ids[0], ids[-1], len(ids)) == (start, end, 3)
    plain = tiny.encode("<|im_start|>a<|im_end|>", special=False)
    assert not {start, end} & set(plain)
    assert tiny.decode(plain) == "<|im_start|>a<|im_end|>"
    assert tiny.decode(ids) == "a"
    assert tiny.token_text(start) == "<|im_start|>"


def test_facts(tiny: Tokenizer) -> None:
    assert tiny.eos_token_ids == {tiny.special_tokens["<|im_end|>"]}
    assert tiny.vocab_size == max(tiny.special_tokens.values()) + 1
    assert not tiny.adds_bos
    assert tiny.token_bytes(10**6) == tiny.token_bytes(-1) == b""
    assert tiny.decode([10**6, *tiny.encode("ok", special=False)]) == "ok"
    assert (
        b"".join(tiny.token_bytes(i) for i in tiny.encode("né 🎉", special=False))
        == "né 🎉".encode()
    )


@given(st.text(), st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_streamed_text_adds_up(tiny_model: Path, text: str, size: int) -> None:
    tokenizer = load_tokenizer(tiny_model)
    ids = tokenizer.encode(text, special=False)
    assert "".join(pieces(tokenizer, ids, size)) == tokenizer.decode(ids) == text


def test_no_piece_holds_half_a_character(tiny: Tokenizer) -> None:
    text = "a🎉你好é👩‍👩‍👧z"
    ids = tiny.encode(text, special=False)
    assert len(ids) > len(text), (
        "the tiny vocabulary has no such characters: each is split over tokens"
    )
    shown = list(pieces(tiny, ids))
    assert "".join(shown) == text
    assert not any("\ufffd" in piece for piece in shown)


def test_bytes_that_are_no_text_show_as_replacement_and_end(
    tiny: Tokenizer, tiny_model: Path
) -> None:
    inner = tokenizers.Tokenizer.from_file(str(tiny_model / "tokenizer.json"))
    dice = random.Random(0)
    for _ in range(300):
        ids = [dice.randrange(tiny.vocab_size) for _ in range(40)]
        assert (
            "".join(pieces(tiny, ids))
            == tiny.decode(ids)
            == inner.decode(ids, skip_special_tokens=True)
        )
    lead = next(i for i in range(tiny.vocab_size) if tiny.token_bytes(i) == b"\xf0")
    assert list(pieces(tiny, [lead])) == ["", "\ufffd"]


def test_the_reader_of_plain_text_has_the_same_tokens(tiny: Tokenizer) -> None:
    assert tiny._plain.get_added_tokens_decoder() == tiny._inner.get_added_tokens_decoder()
    assert tiny._plain.get_vocab() == tiny._inner.get_vocab()


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"], ids=["lead", "trail"])
def test_half_a_surrogate_pair_is_a_bad_request(text: str, tiny: Tokenizer) -> None:
    for special in (True, False):
        with pytest.raises(InvalidRequest, match="surrogate"):
            tiny.encode(text, special=special)


PRE = {
    # What each pre-tokenizer makes of this text; sources: the patterns in the models' own tokenizer.json,
    # for `default` llama.cpp. GPT-2's leaves the last of several line breaks alone.
    "smollm": "ab| |1|2|3|4| don|'t|  | x|\n|\n|!?| 你好|'|LL",
    "llama-bpe": "ab| |123|4| don|'t|  | x|\n\n|!?| 你好|'LL",
    "qwen2": "ab| |1|2|3|4| don|'t|  | x|\n\n|!?| 你好|'LL",
    "gpt-2": "ab| 1234| don|'t|  | x|\n|\n|!?| 你好|'|LL",
    "default": "ab| |123|4| don|'|t|  | x|\n\n|!?| 你好|'|LL",
}


@pytest.mark.parametrize("pre", PRE)
def test_each_pre_tokenizer_splits_as_its_model_does(
    pre: str, tiny_model: Path, tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(to_gguf(tiny_model, tmp_path / "m.gguf", pre=pre))
    text = PRE[pre].replace("|", "")
    spelled = tokenizer._inner.pre_tokenizer.pre_tokenize_str(text)
    words = [bytes(BYTE_ALPHABET[c] for c in word).decode() for word, _ in spelled]
    assert "|".join(words) == PRE[pre]


@pytest.mark.parametrize(
    ("alias", "name"), [("gpt2", "gpt-2"), ("llama3", "llama-bpe"), ("llama-v3", "llama-bpe")]
)
def test_aliases(alias: str, name: str, tiny_model: Path, tmp_path: Path) -> None:
    one, other = (
        load_tokenizer(to_gguf(tiny_model, tmp_path / f"{pre}.gguf", pre=pre))
        for pre in (alias, name)
    )
    for text in TEXTS:
        assert one.encode(text, special=False) == other.encode(text, special=False)
    assert one.adds_bos == other.adds_bos == (name == "llama-bpe")


def test_bos_comes_first_only_where_the_metadata_says_so(tiny_model: Path, tmp_path: Path) -> None:
    key = "tokenizer.ggml.add_bos_token"
    on = load_tokenizer(to_gguf(tiny_model, tmp_path / "on.gguf", extra={key: True}))
    off = load_tokenizer(
        to_gguf(tiny_model, tmp_path / "off.gguf", pre="llama-bpe", extra={key: False})
    )
    plain = on.encode("hello", special=False)
    assert on.encode_prompt("hello") == [on.bos_token_id, *plain]
    assert on.encode_prompt("<|endoftext|>hello", special=True) == [on.bos_token_id, *plain], (
        "not twice"
    )
    assert off.encode_prompt("hello") == off.encode("hello", special=False)


def test_bos_of_a_post_processor(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m")
    inner = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    bos = inner.token_to_id("<|endoftext|>")
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", bos)]
    )
    inner.save(str(folder / "tokenizer.json"))
    tokenizer = load_tokenizer(folder)
    assert tokenizer.adds_bos
    assert tokenizer.encode_prompt("hi") == [bos, *tokenizer.encode("hi", special=False)]


def test_ends_come_from_every_place_that_lists_them(tiny_model: Path, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 5, 10**9, "x"]}))
    names = load_tokenizer(folder).special_tokens
    assert load_tokenizer(folder).eos_token_ids == {0, 5, names["<|im_end|>"]}
    from_gguf = load_tokenizer(
        to_gguf(tiny_model, tmp_path / "m.gguf", extra={"tokenizer.ggml.eot_token_id": 7})
    )
    assert from_gguf.eos_token_ids == {0, 7, names["<|im_end|>"]}


def test_sentencepiece_with_byte_fallback(tmp_path: Path) -> None:
    """The tokenizers of Llama 2 and Mistral: `▁` for spaces, <0xNN> for bytes, no space before the first word."""
    words = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁hello",
        "▁world",
        "▁",
        "lo",
    ]
    vocabulary = {word: number for number, word in enumerate(words)}
    model = tokenizers.models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>")
    inner = tokenizers.Tokenizer(model)
    inner.decoder = tokenizers.decoders.Sequence(
        [
            tokenizers.decoders.Replace("▁", " "),
            tokenizers.decoders.ByteFallback(),
            tokenizers.decoders.Fuse(),
            tokenizers.decoders.Strip(" ", 1, 0),
        ]
    )
    inner.add_special_tokens(["<s>", "</s>"])
    tokenizer = Tokenizer(inner, eos_token_ids=[2], bos_token_id=1, add_bos=True)
    ids = [
        1,
        words.index("▁hello"),
        *(3 + byte for byte in " 🎉".encode()),
        words.index("▁world"),
        2,
    ]
    assert tokenizer.decode(ids) == inner.decode(ids) == "hello 🎉 world"
    assert "".join(pieces(tokenizer, ids)) == "hello 🎉 world"
    assert not any("\ufffd" in piece for piece in pieces(tokenizer, ids))


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"tokenizer.ggml.pre": "deepseek-coder"}, "deepseek-coder"),
        ({"tokenizer.ggml.model": "llama"}, "'llama'"),
        ({"tokenizer.ggml.model": "bert"}, "'bert'"),
    ],
)
def test_an_unsupported_tokenizer_is_named(
    extra: dict[str, Any], named: str, tiny_model: Path, tmp_path: Path
) -> None:
    with pytest.raises(ModelUnsupported, match=named):
        load_tokenizer(to_gguf(tiny_model, tmp_path / "m.gguf", extra=extra))


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"tokenizer.ggml.merges": ["a zz"]}, "merges"),
        ({"tokenizer.ggml.merges": [1]}, "merges"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, "twice"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "token_type"),
    ],
)
def test_a_broken_vocabulary_is_named(
    extra: dict[str, Any], named: str, tiny_model: Path, tmp_path: Path
) -> None:
    with pytest.raises(ModelCorrupt, match=named):
        load_tokenizer(to_gguf(tiny_model, tmp_path / "m.gguf", extra=extra))


def test_a_folder_without_or_with_a_broken_tokenizer(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m")
    (folder / "tokenizer.json").write_text('{"model": {}}')
    with pytest.raises(ModelCorrupt, match=r"tokenizer\.json"):
        load_tokenizer(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelUnsupported, match=r"no tokenizer\.json"):
        load_tokenizer(folder)


@pytest.mark.model
def test_default_model_equals_transformers_own_conversion(
    default_model_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoTokenizer

    monkeypatch.setenv("KVOPS_HOME", str(default_model_home))
    path = resolve("smollm2-135m").path
    ours, theirs = (
        load_tokenizer(path),
        AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name),
    )
    # Their conversion does not read `tokenizer.ggml.pre`: put in what SmolLM2's own tokenizer.json has.
    digits = tokenizers.pre_tokenizers.Digits(individual_digits=True)
    bytes_ = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs.backend_tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([digits, bytes_])
    for text in TEXTS:
        assert ours.encode(text, special=True) == theirs.encode(text, add_special_tokens=False), (
            text
        )
        ids = ours.encode(text, special=False)
        assert ours.decode(ids) == "".join(pieces(ours, ids)) == text
    assert ours.eos_token_ids == {
        ours.special_tokens["<|im_end|>"],
        ours.special_tokens["<|endoftext|>"],
    }
    assert ours.vocab_size == 49152
    # Known from the model card: the template of one user turn, and digits one by one.
    assert ours.encode("<|im_start|>user\n", special=True) == [1, 4093, 198]
    assert [ours.token_text(i) for i in ours.encode("2026", special=False)] == list("2026")

"""The tokenizer inside a GGUF file: byte-level BPE with the pre-tokenizer that `tokenizer.ggml.pre` names.

The splitting patterns are facts of the models; source: llama.cpp `llama-vocab.cpp` and the models' tokenizer.json.
"""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from kvops.errors import ModelCorrupt, ModelUnsupported

_CONTROL, _USER_DEFINED = 3, 4
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PATTERNS = {
    "smollm": (r"\p{N}", _GPT2),
    "llama-bpe": (_WORDS % "{1,3}",),
    "qwen2": (_WORDS % "",),
    "gpt-2": (_GPT2,),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
}
_INSTEAD = "take the model's folder with safetensors and tokenizer.json, as for Mistral and Llama 2"
_ALIASES = {"gpt2": "gpt-2", "llama3": "llama-bpe", "llama-v3": "llama-bpe"}


def build_gguf_tokenizer(metadata: dict[str, Any]) -> tuple[Tokenizer, bool]:
    """The tokenizer, and whether plain text starts with BOS. Raises ModelUnsupported, ModelCorrupt."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise ModelUnsupported(
            f"the GGUF tokenizer {str(kind)[:40]!r} is not supported",
            hint=f"supported is gpt2 (byte-level BPE); {_INSTEAD}",
        )
    pre = _pre_tokenizer(metadata)
    tokenizer = Tokenizer(_bpe(metadata, ignore_merges=pre == "llama-bpe"))
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in _PATTERNS[pre]]
    spelling = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, spelling])
    tokenizer.decoder = decoders.ByteLevel()
    _add_special(tokenizer, metadata)
    return tokenizer, metadata.get("tokenizer.ggml.add_bos_token", pre == "llama-bpe") is True


def _pre_tokenizer(metadata: dict[str, Any]) -> str:
    named = str(metadata.get("tokenizer.ggml.pre", "default"))
    pre = _ALIASES.get(named, named)
    if pre not in _PATTERNS:
        known = ", ".join(_PATTERNS)
        raise ModelUnsupported(
            f"the pre-tokenizer {named[:40]!r} is not supported",
            hint=f"supported are {known}; {_INSTEAD}",
        )
    return pre


def _bpe(metadata: dict[str, Any], *, ignore_merges: bool) -> models.BPE:
    tokens, merges = _strings(metadata, "tokens"), _strings(metadata, "merges")
    vocabulary = {token: number for number, token in enumerate(tokens)}
    if len(vocabulary) < len(tokens):
        raise ModelCorrupt("tokenizer.ggml.tokens has a token twice")
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    for left, right in pairs:
        if left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
            raise ModelCorrupt(
                f"tokenizer.ggml.merges joins {left[:40]!r} and {right[:40]!r}, not in its tokens"
            )
    return models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=ignore_merges)


def _strings(metadata: dict[str, Any], name: str) -> list[str]:
    values = metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(values, list) or not values or not isinstance(values[0], str):
        raise ModelCorrupt(f"tokenizer.ggml.{name} is missing or is no list of strings")
    return values


def _add_special(tokenizer: Tokenizer, metadata: dict[str, Any]) -> None:
    tokens = metadata["tokenizer.ggml.tokens"]
    kinds = metadata.get("tokenizer.ggml.token_type", [])
    if not isinstance(kinds, list) or len(kinds) not in (0, len(tokens)):
        raise ModelCorrupt("tokenizer.ggml.token_type does not have one entry a token")
    control = [token for token, kind in zip(tokens, kinds, strict=False) if kind == _CONTROL]
    defined = [token for token, kind in zip(tokens, kinds, strict=False) if kind == _USER_DEFINED]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in defined])

"""A model without weights: a real tokenizer over plain words, and answers that follow a rule.

It finds the number of a needle prompt as a sound model does, says plain words to anything else, and says the same to
the same prompt.
"""

from __future__ import annotations

import functools
import json
import random
import re
import zlib
from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Inner

from kvops.load import haystack
from kvops.models.spec import ModelSpec
from kvops.models.tokenizer import Tokenizer

MODEL = "words"
REVISION = "0123456789ab"
LIMIT = 4096
"""Tokens of prompt and output."""

_END, _TURN_START, _TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_QUESTION = re.compile(r"What is the special magic number for ([\w-]+) in the document above")
_SHORTEST, _LONGEST = 24, 64
"""Tokens of an answer in plain words."""
_UNKNOWN = "The document does not say."


@functools.cache
def tokenizer_json() -> str:
    """Byte-level BPE over the words that the needle documents are made of: about four characters a token."""
    inner = Inner(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1024,
        special_tokens=[_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    source = random.Random("corpus")
    inner.train_from_iterator((haystack.sentence(source) for _ in range(400)), trainer)
    inner.add_special_tokens([AddedToken(_TURN_START), AddedToken(_TURN_END)])
    return inner.to_str()


def write_model(folder: Path) -> Path:
    """What a node reads of a model besides its weights."""
    folder.mkdir(parents=True, exist_ok=True)
    names = {"bos_token": _END, "eos_token": _TURN_END, "chat_template": _TEMPLATE}
    (folder / "tokenizer.json").write_text(tokenizer_json())
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return folder


def spec(vocabulary: int) -> ModelSpec:
    return ModelSpec(
        family="llama", n_layers=4, hidden_size=64, intermediate_size=128, n_heads=4, n_kv_heads=2, head_dim=16,
        vocab_size=vocabulary, max_context_length=LIMIT, rope_theta=10000.0, rms_norm_eps=1e-5, tie_embeddings=True,
    )  # fmt: skip


class Script:
    """What the model says. Stateless: the same prompt has the same answer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def answer(self, prompt: Sequence[int]) -> list[int]:
        """Token ids up to where the model would end by itself."""
        text = self._tokenizer.decode(prompt)
        key = asked_key(text)
        if key is None:
            return self.words(prompt)
        value = found_value(text, key)
        return self.encode(_UNKNOWN if value is None else f"The number is {value}.")

    def words(self, prompt: Sequence[int]) -> list[int]:
        """Plain words without a digit, other ones for other prompts."""
        source = random.Random(zlib.crc32(repr(list(prompt)).encode()))
        wanted, ids = source.randrange(_SHORTEST, _LONGEST), list[int]()
        while len(ids) < wanted:
            ids += self.encode(" " + haystack.sentence(source))
        return ids[:wanted]

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, special=False)


def asked_key(text: str) -> str | None:
    """Of the needle that a prompt asks for."""
    asked = _QUESTION.search(text)
    return asked.group(1) if asked else None


def found_value(text: str, key: str) -> str | None:
    found = re.search(rf"special magic number for {re.escape(key)} is (\d+)", text)
    return found.group(1) if found else None

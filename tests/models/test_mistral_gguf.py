"""Mistral is read from safetensors, and a GGUF file of it is refused with the way that works."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvops.errors import ModelUnsupported
from kvops.models.gguf_header import read_gguf_header
from kvops.models.gguf_model import gguf_spec
from kvops.models.tokenizer import load_tokenizer
from tests.models.gguf_files import to_gguf
from tests.tiny import make_tiny_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_tiny_model(tmp_path / "m", "mistral")


@pytest.mark.parametrize(
    ("key", "value"), [("tokenizer.ggml.model", "llama"), ("tokenizer.ggml.pre", "tekken")]
)
def test_its_tokenizers_are_refused_with_what_to_take_instead(
    folder: Path, tmp_path: Path, key: str, value: str
) -> None:
    with pytest.raises(ModelUnsupported, match=value) as caught:
        load_tokenizer(to_gguf(folder, tmp_path / "m.gguf", extra={key: value}))
    assert "safetensors and tokenizer.json, as for Mistral" in caught.value.hint


@pytest.mark.parametrize("architecture", ["mistral3", "mistral"])
def test_its_architecture_is_not_promised(folder: Path, tmp_path: Path, architecture: str) -> None:
    file = to_gguf(folder, tmp_path / "m.gguf", extra={"general.architecture": architecture})
    with pytest.raises(ModelUnsupported, match=architecture) as caught:
        gguf_spec(read_gguf_header(file))
    promised, _, instead = caught.value.hint.partition(";")
    assert "mistral" not in promised
    assert "safetensors mistral too" in instead

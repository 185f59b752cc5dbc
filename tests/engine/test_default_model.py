"""The default model: greedy output equals HF transformers' over its own GGUF reader, alone and in any mix."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kvops.models.tokenizer import load_tokenizer
from tests.engine.driving import load, outputs, small_pool, submit

pytestmark = pytest.mark.model

LENGTHS = (5, 9, 16, 17, 31, 64, 150, 330, 560)
"""At, below and above the borders of blocks; the last is longer than a step."""
MORE_LENGTHS = (6, 13, 24, 40, 48, 55, 80, 100, 120, 200, 700, 1500)
NEW = 12
TIE = 1e-4
TEXT = Path(__file__).parent.parent.parent / "LICENSE"


@pytest.fixture(scope="module")
def gguf(default_model_home: Path) -> Path:
    return next((default_model_home / "data").rglob("*.gguf"))


@pytest.fixture(scope="module")
def prompts(gguf: Path) -> dict[str, list[int]]:
    return _cuts(gguf, LENGTHS)


@pytest.fixture(scope="module")
def batched(gguf: Path, prompts: dict[str, list[int]]) -> dict[str, list[int]]:
    return _batched(gguf, prompts)


def _cuts(gguf: Path, lengths: tuple[int, ...]) -> dict[str, list[int]]:
    """Cuts of one English text, each from another place."""
    tokens = load_tokenizer(gguf).encode(TEXT.read_text(), special=False)
    return {str(n): tokens[29 * i : 29 * i + n] for i, n in enumerate(lengths)}


def _batched(gguf: Path, prompts: dict[str, list[int]]) -> dict[str, list[int]]:
    engine = load(gguf, max_batched_tokens=512, pool=small_pool(384))
    return outputs(engine, [submit(n, p, max_tokens=NEW) for n, p in prompts.items()])


def test_equals_transformers(
    gguf: Path, prompts: dict[str, list[int]], batched: dict[str, list[int]]
) -> None:
    _equals_transformers(gguf, prompts, batched)


@pytest.mark.long
def test_more_lengths_equal_transformers(gguf: Path) -> None:
    prompts = _cuts(gguf, MORE_LENGTHS)
    _equals_transformers(gguf, prompts, _batched(gguf, prompts))


def _equals_transformers(
    gguf: Path, prompts: dict[str, list[int]], answers: dict[str, list[int]]
) -> None:
    reference = _reference(gguf)
    for name, prompt in prompts.items():
        gaps = _gaps(reference, prompt, answers[name])
        assert len(gaps) == NEW
        assert max(gaps) < TIE, f"the prompt of {name} tokens"


def _reference(gguf: Path) -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.initialization import no_init_weights
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = load_gguf_checkpoint(gguf)["config"]
    with no_init_weights():
        model = LlamaForCausalLM(LlamaConfig(**config)).eval()
    tensors = load_gguf_checkpoint(gguf, return_tensors=True, model_to_load=model)["tensors"]
    loaded = model.load_state_dict(tensors, strict=False)
    assert loaded.missing_keys == ["lm_head.weight"], "tied to the embedding"
    assert loaded.unexpected_keys == []
    return model


def _gaps(model: torch.nn.Module, prompt: list[int], output: list[int]) -> list[float]:
    """By how much the reference likes another token more, at each position; 0 where it agrees."""
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1]
    chosen = logits.gather(1, torch.tensor(output).unsqueeze(1)).squeeze(1)
    return (logits.amax(dim=-1) - chosen).tolist()


def test_the_same_alone_chunked_cached_and_preempted(
    gguf: Path, prompts: dict[str, list[int]], batched: dict[str, list[int]]
) -> None:
    some = {name: prompts[name] for name in ("5", "17", "64", "150", "330")}
    expected = {name: batched[name] for name in some}
    submits = [submit(name, prompt, max_tokens=NEW) for name, prompt in some.items()]

    engine = load(gguf, max_batched_tokens=48, pool=small_pool(64))
    alone: dict[str, list[int]] = {}
    for one in submits:
        alone |= outputs(engine, [one])
    assert alone == expected
    assert outputs(engine, submits) == expected
    assert engine.stats().prefix_cache.hit_tokens >= 500

    tight = load(gguf, max_batched_tokens=512, pool=small_pool(39, watermark=0.0))
    assert outputs(tight, submits) == expected
    assert tight.stats().kv.preemptions > 0

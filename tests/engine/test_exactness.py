"""Greedy output equals HF transformers', and is the same however the work is cut and mixed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kvops.node.engine.engine import Engine
from tests.engine.driving import drain, load, outputs, small_pool, submit
from tests.engine.reference import reference_model
from tests.tiny import make_tiny_model


def hf_greedy(model: torch.nn.Module, prompt: list[int], count: int) -> list[int]:
    tokens = torch.tensor([prompt])
    with torch.inference_mode():
        out = model.generate(  # type: ignore[operator]
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=-1,
            pad_token_id=0,
        )
    return out[0, len(prompt) :].tolist()


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("tie", [False, True])
def test_equals_transformers(
    family: str, tie: bool, tmp_path: Path, prompts: list[list[int]]
) -> None:
    folder = make_tiny_model(tmp_path / family, family, seed=3, n_layers=3, tie=tie)
    reference = reference_model(folder)
    expected = {str(i): hf_greedy(reference, prompt, 12) for i, prompt in enumerate(prompts)}
    engine = load(folder)
    got = outputs(engine, [submit(str(i), p, max_tokens=12) for i, p in enumerate(prompts)])
    assert got == expected


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sliding_window", 24),
        ("rope_scaling", {"rope_type": "linear", "factor": 4.0}),
        (
            "rope_scaling",
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        ),
    ],
)
def test_variants_equal_transformers(
    field: str, value: object, tmp_path: Path, prompts: list[list[int]]
) -> None:
    import json

    folder = make_tiny_model(
        tmp_path / "m", "mistral" if field == "sliding_window" else "llama", seed=5
    )
    config = json.loads((folder / "config.json").read_text()) | {field: value}
    (folder / "config.json").write_text(json.dumps(config))
    reference = reference_model(folder)
    expected = {str(i): hf_greedy(reference, prompt, 12) for i, prompt in enumerate(prompts)}
    engine = load(folder, max_batched_tokens=48)
    assert (
        outputs(engine, [submit(str(i), p, max_tokens=12) for i, p in enumerate(prompts)])
        == expected
    )


@pytest.fixture(scope="module")
def alone(tiny_model: Path, prompts: list[list[int]]) -> dict[str, list[int]]:
    """Each prompt's output with the engine to itself and nothing cached."""
    engine = load(tiny_model, pool=small_pool(256, prefix_caching=False))
    found: dict[str, list[int]] = {}
    for index, prompt in enumerate(prompts):
        found |= outputs(engine, [submit(str(index), prompt, max_tokens=40)])
    return found


def together(engine: Engine, prompts: list[list[int]]) -> dict[str, list[int]]:
    return outputs(engine, [submit(str(i), p, max_tokens=40) for i, p in enumerate(prompts)])


def test_batched(engine: Engine, alone: dict[str, list[int]], prompts: list[list[int]]) -> None:
    assert together(engine, prompts) == alone


@pytest.mark.parametrize("budget", [16, 33, 100])
def test_chunked(
    budget: int, tiny_model: Path, alone: dict[str, list[int]], prompts: list[list[int]]
) -> None:
    assert together(load(tiny_model, max_batched_tokens=budget), prompts) == alone


@pytest.mark.parametrize("block_size", [8, 32])
def test_other_block_sizes(
    block_size: int, tiny_model: Path, alone: dict[str, list[int]], prompts: list[list[int]]
) -> None:
    from kvops.node.wire import PoolPlan

    engine = load(tiny_model, pool=PoolPlan(block_size=block_size, blocks=256))
    assert together(engine, prompts) == alone


def test_prefix_cached(
    engine: Engine, alone: dict[str, list[int]], prompts: list[list[int]]
) -> None:
    together(engine, prompts)
    before = engine.stats().prefix_cache.hit_tokens
    assert together(engine, prompts) == alone
    assert engine.stats().prefix_cache.hit_tokens - before == sum(
        (len(p) - 1) // 16 * 16 for p in prompts
    )


@pytest.mark.parametrize("caching", [True, False])
def test_preempted(
    caching: bool, tiny_model: Path, alone: dict[str, list[int]], prompts: list[list[int]]
) -> None:
    engine = load(tiny_model, pool=small_pool(16, prefix_caching=caching, watermark=0.0))
    assert together(engine, prompts) == alone
    assert engine.stats().kv.preemptions > 0


def test_bfloat16_runs(tiny_model: Path, prompts: list[list[int]]) -> None:
    engine = load(tiny_model, weights_dtype="bfloat16")
    assert engine.info.kv_dtype == "bfloat16"
    engine.add(submit("r", prompts[-1], max_tokens=8))
    assert len(drain(engine)["r"].tokens) == 8

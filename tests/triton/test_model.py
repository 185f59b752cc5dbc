"""Whole models on the kernels: the same greedy tokens as on the oracle, however the work is cut, mixed and padded."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kvops.models.checkpoint import Checkpoint, open_checkpoint
from kvops.node.engine.attention.base import KvCache, PagedBatch
from kvops.node.engine.attention.torch_reference import TorchAttention
from kvops.node.engine.cuda.attention import TritonAttention
from kvops.node.engine.cuda.graphs import DecodeGraphs, GraphedDecoder, Rung, ladder
from kvops.node.engine.cuda.pool import KvFormat, Pool
from kvops.node.engine.cuda.rounded import load_rounded
from kvops.node.engine.cuda.sizing import largest_batch
from kvops.node.engine.engine import Engine
from kvops.node.engine.loading import Loaded
from kvops.node.engine.memory import MemoryAccounts
from kvops.node.engine.model.decoder import Decoder
from kvops.node.engine.model.rotary import Rotary
from kvops.node.engine.model.torch_decoder import TorchDecoder
from kvops.node.engine.model.weights import DecoderWeights, load_weights
from kvops.node.engine.runner import Model, Runner
from kvops.node.engine.sampler import Sampler
from kvops.node.wire import EngineInfo
from tests.engine.driving import outputs, small_pool, start, submit
from tests.paged import CPU
from tests.tiny import make_tiny_model

BLOCKS, BLOCK_SIZE, LONGEST = 64, 16, 256
Make = Callable[[Checkpoint, int], Model]
"""Of a checkpoint and the number of blocks."""


def exact(checkpoint: Checkpoint) -> DecoderWeights:
    return load_weights(checkpoint.spec, checkpoint.tensors(), torch.float32, CPU)


def decoder(checkpoint: Checkpoint, weights: DecoderWeights | None = None) -> Decoder:
    rotary = Rotary(checkpoint.spec, LONGEST, torch.float32, CPU)
    return Decoder(checkpoint.spec, weights or exact(checkpoint), rotary)


def oracle(checkpoint: Checkpoint, blocks: int) -> Model:
    cache = KvCache.allocate(checkpoint.spec, blocks, BLOCK_SIZE, torch.float32, CPU)
    attention = TorchAttention(cache, checkpoint.spec.sliding_window)
    return TorchDecoder(decoder(checkpoint), attention, CPU)


def attention_over(checkpoint: Checkpoint, pool: Pool) -> TritonAttention:
    spec = checkpoint.spec
    return TritonAttention(pool, spec.n_heads, spec.sliding_window, torch.float32)


def eager(checkpoint: Checkpoint, blocks: int, kind: KvFormat = "float32") -> Model:
    pool = Pool.allocate(checkpoint.spec, blocks, BLOCK_SIZE, kind, CPU)
    return TorchDecoder(decoder(checkpoint), attention_over(checkpoint, pool), CPU)


def graphed(checkpoint: Checkpoint, blocks: int) -> Model:
    """As on a GPU, but that what would be a graph computes straight."""
    pool = Pool.allocate(checkpoint.spec, blocks, BLOCK_SIZE, "float32", CPU)
    return graphed_over(checkpoint, pool)


def graphed_over(checkpoint: Checkpoint, pool: Pool) -> GraphedDecoder:
    model, attention = decoder(checkpoint), attention_over(checkpoint, pool)
    rungs = [
        Rung(rows, LONGEST // BLOCK_SIZE, BLOCK_SIZE, pool.scratch_block, CPU) for rows in ladder(6)
    ]
    graphs = DecodeGraphs(
        lambda rung: model.forward(rung.token_ids, rung.positions, attention.step(rung.inputs)),
        rungs,
        lambda compute: compute,
    )
    return GraphedDecoder(model, TorchDecoder(model, attention, CPU), graphs)


def engine(folder: Path, make: Make, *, blocks: int = BLOCKS, tokens: int = 256) -> Engine:
    checkpoint = open_checkpoint(folder)
    info = EngineInfo(
        spec=checkpoint.spec,
        parameters=checkpoint.parameters,
        weights_dtype="float32",
        kv_dtype="float32",
        device="cpu",
        max_model_len=LONGEST,
        pool_blocks=blocks,
        block_size=BLOCK_SIZE,
        bytes_per_block=1,
    )
    runner = Runner(make(checkpoint, blocks), Sampler(()))
    settings = start(folder, pool=small_pool(blocks), max_batched_tokens=tokens)
    return Engine(Loaded(runner, info, MemoryAccounts(CPU, 0, 0, 0)), settings)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    source = random.Random(11)
    made = [[source.randrange(300) for _ in range(n)] for n in (1, 15, 16, 17, 40, 90)]
    return [*made, made[-1][:64] + made[1]]


def greedy(engine: Engine, prompts: list[list[int]], count: int = 6) -> dict[str, list[int]]:
    return outputs(
        engine, [submit(str(i), prompt, max_tokens=count) for i, prompt in enumerate(prompts)]
    )


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral"])
def test_equals_the_oracle(family: str, tmp_path: Path, prompts: list[list[int]]) -> None:
    folder = make_tiny_model(tmp_path / "m", family, seed=3, heads=6, kv_heads=2, head_dim=32)
    if family == "mistral":
        config = folder / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"sliding_window": 24}))
    expected = greedy(engine(folder, oracle), prompts)
    assert greedy(engine(folder, eager), prompts) == expected
    assert greedy(engine(folder, graphed), prompts) == expected


def test_cut_alone_and_preempted_is_the_same(tiny_model: Path, prompts: list[list[int]]) -> None:
    """Prompts in small chunks; one after the other; in a pool so small that some are thrown out and come back."""
    few = [prompts[1], *prompts[3:6]]
    together = greedy(engine(tiny_model, graphed), few, 8)
    assert greedy(engine(tiny_model, graphed, tokens=24), few, 8) == together
    alone = engine(tiny_model, graphed)
    for name, tokens in together.items():
        assert outputs(alone, [submit(name, few[int(name)], max_tokens=8)])[name] == tokens
    tight = engine(tiny_model, graphed, blocks=13)
    assert greedy(tight, few, 8) == together
    assert tight.stats().kv.preemptions > 0
    assert tight.check() == []


def test_rounded_formats_stay_close(tiny_model: Path, prompts: list[list[int]]) -> None:
    """Logits of a prompt's every token, root mean square error as a share of their spread."""
    checkpoint = open_checkpoint(tiny_model)
    expected = logits(oracle(checkpoint, BLOCKS), prompts[-2])
    for kind, least, most in (("bfloat16", 1e-5, 0.02), ("int8", 1e-5, 0.03), ("fp8", 1e-4, 0.2)):
        got = logits(eager(checkpoint, BLOCKS, kind), prompts[-2])  # type: ignore[arg-type]
        assert least < (got - expected).pow(2).mean().sqrt() / expected.std() < most


def test_int8_weights_stay_close(tiny_model: Path, prompts: list[list[int]]) -> None:
    checkpoint = open_checkpoint(tiny_model)
    weights = load_rounded(checkpoint.spec, checkpoint.tensors(), CPU)
    pool = Pool.allocate(checkpoint.spec, BLOCKS, BLOCK_SIZE, "float32", CPU)
    rounded = TorchDecoder(
        decoder(checkpoint, in_float32(weights)), attention_over(checkpoint, pool), CPU
    )
    expected = logits(oracle(checkpoint, BLOCKS), prompts[-2])
    error = (logits(rounded, prompts[-2]) - expected).pow(2).mean().sqrt() / expected.std()
    assert 1e-4 < error < 0.1


def in_float32(weights: DecoderWeights) -> DecoderWeights:
    """The interpreter's products are float32, so what they are added to must be."""
    layers = tuple(
        replace(
            layer,
            attention_norm=layer.attention_norm.float(),
            mlp_norm=layer.mlp_norm.float(),
        )
        for layer in weights.layers
    )
    return DecoderWeights(weights.embedding.float(), layers, weights.norm.float(), weights.lm_head)


def logits(model: Model, prompt: list[int]) -> torch.Tensor:
    count = len(prompt)
    table = list(range(-(-count // BLOCK_SIZE)))
    with torch.inference_mode():
        return model.logits(prompt, PagedBatch([count], [count], [table]), list(range(count)))


def test_padding_touches_no_block_of_the_pool(tiny_model: Path) -> None:
    """Each number of rows, in the next larger graph: logits as without one, and other blocks as before, to the bit."""
    checkpoint = open_checkpoint(tiny_model)
    pools = [Pool.allocate(checkpoint.spec, 20, BLOCK_SIZE, "float32", CPU) for _ in range(2)]
    for pool in pools:
        torch.manual_seed(1)
        for part in (pool.keys, pool.values):
            part.normal_()
    padded = graphed_over(checkpoint, pools[0])
    plain = TorchDecoder(decoder(checkpoint), attention_over(checkpoint, pools[1]), CPU)
    tables = [[3, 9], [0, 1, 2], [19], [7, 8], [5]]
    contexts = [17, 40, 1, 32, 9]
    with torch.inference_mode():
        for count in (5, 1, 3, 2):
            batch = PagedBatch([1] * count, contexts[:count], tables[:count])
            rows = list(range(count))
            got, expected = (model.logits(rows, batch, rows) for model in (padded, plain))
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(pools[0].keys[:, :20], pools[1].keys[:, :20])
            before = [part.clone() for part in (pools[0].keys, pools[0].values)]
            padded.logits(rows, batch, rows)
            for part, old in zip((pools[0].keys, pools[0].values), before, strict=True):
                assert torch.equal(part[:, :20], old[:, :20])


def test_the_largest_step_needs_no_block_of_the_pool(tiny_model: Path) -> None:
    """It can be run, and so measured, before the pool is there."""
    checkpoint = open_checkpoint(tiny_model)
    settings = start(tiny_model, max_batch_size=5, max_batched_tokens=70)
    batch = largest_batch(settings, 0, 40)
    assert [chunk.length for chunk in batch.chunks] == [40, 27, 1, 1, 1]
    runner = Runner(eager(checkpoint, 0), Sampler(()))
    assert len(runner.run(batch)) == 5

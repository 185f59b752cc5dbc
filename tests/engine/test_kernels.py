"""The compiled decoder against the torch one: any shape, format, window and cut of the work."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from kvops.models.checkpoint import open_checkpoint
from kvops.node.engine.attention.base import KvCache, PagedBatch
from kvops.node.engine.attention.torch_reference import TorchAttention
from kvops.node.engine.cpu import decoder as cpu
from kvops.node.engine.cpu import work
from kvops.node.engine.cpu.packing import Packer
from kvops.node.engine.cpu.team import Team
from kvops.node.engine.model.decoder import Decoder
from kvops.node.engine.model.rotary import Rotary
from kvops.node.engine.model.torch_decoder import TorchDecoder
from kvops.node.engine.model.weights import load_weights
from tests.tiny import make_tiny_model

BLOCKS = 96
POSITIONS = BLOCKS * 16
CPU = torch.device("cpu")


def combinations(*shown: tuple[str, str]) -> list[pytest.ParameterSet]:
    """(weights, KV): all nine with --long, else those shown. Compiling takes many seconds a pair, and a pair is the
    code of its weights beside the code of its KV: each format is shown at least once."""
    every = itertools.product(("float32", "bfloat16", "int8"), repeat=2)
    others = [pair for pair in every if pair not in shown]
    return [
        *(pytest.param(*pair) for pair in shown),
        *(pytest.param(*pair, marks=pytest.mark.long) for pair in others),
    ]


USUAL = (
    ("float32", "float32"),
    ("bfloat16", "bfloat16"),
    ("int8", "bfloat16"),
    ("float32", "int8"),
    ("int8", "int8"),
)
"""What a node chooses by itself, the reference, and what other tests run anyway."""


@dataclass
class Case:
    """One request's tokens and its place in the pool."""

    tokens: list[int]
    table: list[int]


def compiled(
    folder: Path, weights: str, kv: str, block_size: int = 16, threads: int = 2, window: int = 0
) -> cpu.CompiledDecoder:
    checkpoint = open_checkpoint(folder)
    shape = cpu.shape_of(checkpoint.spec, BLOCKS, block_size)._replace(window=window)
    packed = Packer(checkpoint.spec, weights, POSITIONS).pack(checkpoint.tensors())  # type: ignore[arg-type]
    pool = cpu.allocate_pool(shape, kv)  # type: ignore[arg-type]
    return cpu.CompiledDecoder(shape, packed, pool, Team(threads), 64, 8)


def reference(folder: Path, block_size: int = 16, window: int = 0) -> TorchDecoder:
    checkpoint = open_checkpoint(folder)
    spec = checkpoint.spec
    weights = load_weights(spec, checkpoint.tensors(), torch.float32, CPU)
    cache = KvCache.allocate(spec, BLOCKS, block_size, torch.float32, CPU)
    rotary = Rotary(spec, POSITIONS, torch.float32, CPU)
    return TorchDecoder(Decoder(spec, weights, rotary), TorchAttention(cache, window or None), CPU)


def cases(block_size: int, seed: int, lengths: tuple[int, ...] = (1, 7, 33, 90, 150)) -> list[Case]:
    """Prompts whose blocks lie anywhere in the pool."""
    source = random.Random(seed)
    free = source.sample(range(BLOCKS), BLOCKS)
    made = []
    for length in lengths:
        table = [free.pop() for _ in range(-(-length // block_size))]
        made.append(Case([source.randrange(300) for _ in range(length)], table))
    return made


def run(model: cpu.CompiledDecoder | TorchDecoder, requests: list[Case], cuts: list[int]) -> Tensor:
    """Logits of every token, `cuts[i]` tokens of each request a step, all requests side by side."""
    found: dict[tuple[int, int], Tensor] = {}
    done = [0] * len(requests)
    turn = 0
    while any(at < len(case.tokens) for at, case in zip(done, requests, strict=True)):
        size = cuts[min(turn, len(cuts) - 1)]
        now = [(i, min(size, len(case.tokens) - done[i])) for i, case in enumerate(requests)]
        now = [(i, length) for i, length in now if length]
        tokens = [t for i, length in now for t in requests[i].tokens[done[i] : done[i] + length]]
        batch = PagedBatch(
            [length for _, length in now],
            [done[i] + length for i, length in now],
            [requests[i].table for i, _ in now],
        )
        with torch.inference_mode():
            logits = model.logits(tokens, batch, list(range(len(tokens)))).clone()
        names = [(i, done[i] + step) for i, length in now for step in range(length)]
        found |= zip(names, logits, strict=True)
        for i, length in now:
            done[i] += length
        turn += 1
    return torch.stack([found[name] for name in sorted(found)])


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "block_size"),
    [(4, 2, 16, 16), (3, 1, 32, 8), (4, 4, 48, 32), (9, 3, 64, 64)],
)
def test_float32_equals_torch(
    family: str, heads: int, kv_heads: int, head_dim: int, block_size: int, tmp_path: Path
) -> None:
    folder = make_tiny_model(
        tmp_path / "m", family, heads=heads, kv_heads=kv_heads, head_dim=head_dim, seed=heads
    )
    lengths = (1, 7, 33, 90, 150)
    requests = cases(block_size, 1, lengths)
    expected = run(reference(folder, block_size), requests, [1000])
    got = run(compiled(folder, "float32", "float32", block_size), requests, [40, 1, 17, 1000])
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("weights", "kv"), combinations(*USUAL))
def test_no_bit_depends_on_how_the_work_is_cut(weights: str, kv: str, tiny_model: Path) -> None:
    """Alone or with others, at once, in chunks or token by token, on one thread or three: the same bits."""
    requests = cases(16, 2)
    whole = run(compiled(tiny_model, weights, kv, threads=1), requests, [1000])
    assert torch.isfinite(whole).all()
    pieces = run(compiled(tiny_model, weights, kv, threads=3), requests, [5, 1, 1, 64, 1])
    assert torch.equal(pieces, whole)
    alone = [run(compiled(tiny_model, weights, kv), [case], [1]) for case in requests[:4]]
    assert torch.equal(torch.cat(alone), whole[: sum(len(case.tokens) for case in requests[:4])])


@pytest.mark.parametrize("window", [0, 700])
@pytest.mark.parametrize("kv", ["float32", "int8"])
def test_threads_that_share_a_long_context_change_no_bit(
    window: int, kv: str, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segments of a context are tasks of their own where a step has few tasks, else one task's."""
    requests = cases(16, 7, (1300, 40))
    models = [compiled(tiny_model, "float32", kv, window=window) for _ in range(2)]
    cuts = [512, 512, 250, 3, 1]
    shared = run(models[0], requests, cuts)
    long = PagedBatch([1], [1300], [requests[0].table])
    assert work.work_of(models[0]._shape, 2, [0], long, [0]).merges == 1
    monkeypatch.setattr(work, "PARTS", 0)
    assert work.work_of(models[0]._shape, 2, [0], long, [0]).merges == 0
    assert torch.equal(run(models[1], requests, cuts), shared)
    if kv == "float32":
        expected = run(reference(tiny_model, window=window), requests, [2000])
        torch.testing.assert_close(shared, expected, rtol=1e-4, atol=1e-4)


MOST_OF_WEIGHTS = {"float32": 0.0, "bfloat16": 0.02, "int8": 0.08}
MOST_OF_KV = {"float32": 0.0, "bfloat16": 0.02, "int8": 0.03}


@pytest.mark.parametrize(("weights", "kv"), combinations(*USUAL)[1:])
def test_rounded_formats_stay_close(weights: str, kv: str, tiny_model: Path) -> None:
    """Root mean square error, as a share of the logits' spread; these weights are noise, which rounds worst."""
    requests = cases(16, 3)
    expected = run(reference(tiny_model), requests, [1000])
    got = run(compiled(tiny_model, weights, kv), requests, [1000])
    error = (got - expected).pow(2).mean().sqrt() / expected.std()
    assert 1e-5 < error < max(MOST_OF_WEIGHTS[weights], MOST_OF_KV[kv])


@pytest.mark.parametrize("kv", ["float32", "bfloat16", "int8"])
def test_blocks_take_what_is_said(kv: str, tiny_model: Path) -> None:
    spec = open_checkpoint(tiny_model).spec
    for size in (8, 16, 64):
        pool = cpu.allocate_pool(cpu.shape_of(spec, BLOCKS, size), kv)  # type: ignore[arg-type]
        assert sum(array.nbytes for array in pool) == BLOCKS * cpu.block_bytes(spec, size, kv)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("weights", ["float32", "int8"])
def test_what_is_not_finite_shows_in_its_own_row_alone(
    bad: float, weights: str, tiny_model: Path
) -> None:
    model = compiled(tiny_model, weights, "int8")
    first, second = cases(16, 4, (20, 20))
    batch = PagedBatch([20, 20], [20, 20], [first.table, second.table])
    expected = model.logits(first.tokens + second.tokens, batch, [19, 39]).clone()
    scales = model._pool.key_scales
    scales.reshape(-1, BLOCKS, 16)[:, first.table] = bad
    batch = PagedBatch([1, 1], [20, 20], [first.table, second.table])
    got = model.logits([first.tokens[-1], second.tokens[-1]], batch, [0, 1])
    assert not torch.isfinite(got[0]).any()
    assert torch.equal(got[1], expected[1])

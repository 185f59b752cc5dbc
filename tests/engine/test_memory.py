"""What steps take: bounded before loading, measured after; and a ledger that closes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from kvops.machine import Memory
from kvops.node.engine import memory
from kvops.node.engine.memory import MemoryAccounts
from tests.tiny import make_tiny_model

MIB = 2**20

PROBE = """
import json, sys, torch
from pathlib import Path
from kvops.models.checkpoint import open_checkpoint
from kvops.node.engine.activations import activation_bytes, step_bytes
from kvops.node.engine.formats import choose
from kvops.node.engine.memory import peak_of
from kvops.node.wire import PoolPlan
from tests.engine.driving import drain, load, start, submit

path, weights, kv, tokens = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
settings = dict(weights_dtype=weights, pool=PoolPlan(block_size=16, blocks=400, dtype=kv),
                max_batch_size=48, max_batched_tokens=tokens, threads=2)
begin = start(path, **settings)
spec, device = open_checkpoint(path).spec, torch.device("cpu")
formats = choose(begin, spec, device)
arguments = (begin, spec, formats, min(spec.max_context_length, 400 * 16), 2)
engine = load(path, **settings)

def full_batches():
    for index in range(48):
        prompt = [(index * 31 + at * 7) % 300 for at in range(20)]
        ranked = {"top_p": 0.9999} if index % 2 else {"min_p": 0.001}
        engine.add(submit(str(index), prompt, max_tokens=3, temperature=2.0, logprobs=20, **ranked))
    drain(engine)

accounts = engine._accounts
print(json.dumps({
    "compiled": formats.compiled, "bound": activation_bytes(*arguments), "step": step_bytes(*arguments),
    "buffers": accounts.buffers, "warm_up": accounts.activations,
    "full": accounts.buffers + peak_of(device, full_batches),
}))
"""


def probe(model: Path, weights: str, kv: str, tokens: int = 256) -> dict[str, Any]:
    """In a process of its own: what other tests give back meanwhile would be taken off the peak."""
    printed = subprocess.run(
        [sys.executable, "-c", PROBE, str(model), weights, kv, str(tokens)],
        capture_output=True,
        text=True,
        check=True,
    )
    figures: dict[str, Any] = json.loads(printed.stdout)
    return figures


@pytest.mark.parametrize(("weights", "kv"), [("float32", "float32"), ("int8", "int8")])
def test_what_a_tiny_model_takes_is_under_the_bound(
    weights: str, kv: str, tiny_model: Path
) -> None:
    seen = probe(tiny_model, weights, kv)
    assert 0 < seen["buffers"] <= seen["warm_up"] <= seen["bound"]
    assert seen["full"] <= seen["bound"]


@pytest.mark.parametrize(("weights", "kv"), [("float32", "float32"), ("int8", "int8")])
def test_what_the_default_model_takes_is_under_the_bound(
    weights: str, kv: str, default_model_home: Path
) -> None:
    """Here a step's arrays outweigh all else, so the bound on them alone must hold, and is not idle talk."""
    (model,) = default_model_home.glob("data/models/smollm2-135m/*.gguf")
    seen = probe(model, weights, kv, tokens=2048)
    assert seen["buffers"] <= seen["warm_up"] <= seen["step"]
    assert seen["step"] / 4 <= seen["full"] <= seen["step"] + 16 * MIB
    assert seen["bound"] > seen["step"]


def test_what_torch_takes_is_under_the_bound(tmp_path: Path) -> None:
    """A head size that the kernels do not serve."""
    seen = probe(make_tiny_model(tmp_path / "odd", head_dim=12), "float32", "float32")
    assert not seen["compiled"]
    assert 0 < seen["warm_up"] <= seen["bound"]
    assert seen["full"] <= seen["bound"]


def test_the_ledger_closes_even_where_accounts_exceed_what_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accounts = MemoryAccounts(
        torch.device("cpu"), weights=4_000, kv_reserved=3_000, activations=2_000, buffers=500
    )
    for free in (0, 500, 2_500, 9_000):
        monkeypatch.setattr(memory, "device_memory", lambda device, free=free: Memory(10_000, free))
        ledger = accounts.ledger(kv_used=1, kv_cached=2)
        assert 9_000 + ledger.other + ledger.free == ledger.total
        assert ledger.other >= 0
        assert ledger.free >= 0


def test_a_peak_is_measured_also_where_memory_was_freed_before() -> None:
    code = """
import torch
from kvops.node.engine.memory import peak_of
kept = [bytearray(100_000) for _ in range(500)]
pinned = bytearray(100_000)
del kept
work = lambda: [torch.ones(10_000, dtype=torch.float64) for _ in range(800)]
print(peak_of(torch.device("cpu"), lambda: work() and None))
"""
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert 58 * MIB <= int(printed.stdout) <= 90 * MIB

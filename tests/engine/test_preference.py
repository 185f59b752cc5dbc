"""`auto` follows what was evaluated: the first choice unless it costs too much, then the next that is known good."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kvops.models.checkpoint import open_checkpoint
from kvops.models.evaluation import Evaluation
from kvops.node.engine.formats import choose
from kvops.node.engine.preference import settle
from kvops.node.wire import KvDtype, PoolPlan, WeightsDtype
from tests.engine import driving
from tests.quality.test_figures import made

CPU = torch.device("cpu")
DEAR = made(12.0)
"""int8 weights with bfloat16 KV, 20 % over the reference."""


@pytest.fixture(autouse=True)
def _kernels(tiny_model: Path) -> None:
    start = driving.start(tiny_model)
    if not choose(start, open_checkpoint(tiny_model).spec, CPU).compiled:
        pytest.skip("no kernels for this CPU: there is one choice only")


def settled(
    path: Path, *known: Evaluation, weights: WeightsDtype = "auto", kv: KvDtype = "auto"
) -> tuple[str, str, str]:
    pool = PoolPlan(block_size=16, blocks=8, dtype=kv)
    start = driving.start(path, weights_dtype=weights, pool=pool, evaluations=known)
    formats = settle(start, open_checkpoint(path).spec, CPU)
    return formats.weights, formats.kv, formats.reason


def test_nothing_is_known(tiny_model: Path) -> None:
    weights, kv, reason = settled(tiny_model)
    assert (weights, kv) == ("int8", "bfloat16")
    assert reason.endswith("not evaluated for this model")


def test_what_is_known_is_cited(tiny_model: Path) -> None:
    _, _, reason = settled(tiny_model, made(10.01))
    assert reason.endswith("evaluated +0.10 % perplexity on 4 096 tokens")
    weights, _, reason = settled(tiny_model, made(10.2, margin=0.05))
    assert weights == "int8"
    assert reason.endswith("+2.00 % perplexity on 4 096 tokens, inconclusive")


def test_what_costs_too_much_is_passed_over_for_what_is_exact(tiny_model: Path) -> None:
    weights, kv, reason = settled(tiny_model, DEAR)
    assert (weights, kv) == ("float32", "float32")
    assert reason == "auto: int8 with bfloat16 KV costs +20.00 % perplexity, float32 is exact"


def test_or_for_the_next_that_was_evaluated(tiny_model: Path) -> None:
    good = made(10.01, weights="bfloat16")
    weights, kv, reason = settled(tiny_model, DEAR, good)
    assert (weights, kv) == ("bfloat16", "bfloat16")
    assert reason.endswith("this +0.10 % perplexity on 4 096 tokens")
    also_dear = made(11.0, weights="bfloat16")
    assert settled(tiny_model, DEAR, also_dear)[:2] == ("float32", "float32")


def test_evaluations_of_another_device_say_nothing(tiny_model: Path) -> None:
    assert settled(tiny_model, made(12.0, device="cuda"))[:2] == ("int8", "bfloat16")


def test_what_was_asked_for_stays(tiny_model: Path) -> None:
    assert settled(tiny_model, DEAR, weights="int8", kv="bfloat16") == ("int8", "bfloat16", "")
    # Only the KV may change: float32 KV is not known to be enough, but rounds least.
    weights, kv, reason = settled(tiny_model, DEAR, weights="int8")
    assert (weights, kv) == ("int8", "float32")
    assert reason.endswith("nothing finer that may be used was evaluated")
    dear = made(12.0, kv="int8")
    weights, kv, _ = settled(tiny_model, dear, kv="int8")
    assert (weights, kv) == ("float32", "int8")

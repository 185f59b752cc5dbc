"""int8 weights: the kernel against the same weights in float32, and how far they are from the exact ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kvops.models.checkpoint import open_checkpoint
from kvops.node.engine.cuda.rounded import RoundedLinear, load_rounded, rounded_bytes
from tests.tiny import make_tiny_model


@pytest.mark.parametrize("rows", [1, 5, 16, 17, 70])
@pytest.mark.parametrize(("out", "depth"), [(64, 64), (100, 72), (193, 130)])
@pytest.mark.parametrize("biased", [False, True])
def test_equals_the_product_with_what_the_weights_stand_for(
    rows: int, out: int, depth: int, biased: bool
) -> None:
    noise = torch.Generator().manual_seed(rows)
    weight = torch.randn(out, depth, generator=noise)
    bias = torch.randn(out, generator=noise) if biased else None
    linear = RoundedLinear(weight, bias)
    left = torch.randn(rows, depth + 3, generator=noise)[:, :depth]
    expected = left @ (linear.weight.float() * linear.scales[:, None]).T
    torch.testing.assert_close(
        linear(left), expected if bias is None else expected + bias, rtol=1e-5, atol=1e-4
    )


def test_weights_are_rounded_to_nearest_with_a_scale_an_output() -> None:
    weight = torch.randn(50, 33) * 10.0 ** torch.linspace(-6, 6, 50)[:, None]
    weight[7] = 0
    linear = RoundedLinear(weight)
    error = (linear.weight.float() * linear.scales[:, None] - weight).abs()
    assert (error <= linear.scales[:, None] * 0.5001).all()
    assert (linear.weight.abs().amax(1)[weight.abs().amax(1) > 0] == 127).all()


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tie", [False, True])
def test_weights_take_what_is_said(family: str, tie: bool, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(make_tiny_model(tmp_path / "m", family, tie=tie))
    weights = load_rounded(checkpoint.spec, checkpoint.tensors(), torch.device("cpu"))
    assert weights.nbytes == rounded_bytes(checkpoint.spec)

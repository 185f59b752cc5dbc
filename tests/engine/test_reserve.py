"""Memory that is asked for early is zero, apart, and bounded."""

from __future__ import annotations

import numpy as np
import pytest

from kvops.machine import host_memory
from kvops.node.engine.reserve import Reserve
from kvops.node.wire import PoolPlan, Start


def start(device: str = "cpu", **pool: int) -> Start:
    return Start(
        model_path="", model_name="", revision="", max_context_length=None, weights_dtype="auto",
        pool=PoolPlan(block_size=16, **pool), max_batch_size=1, max_batched_tokens=16, threads=1,
        device=device,
    )  # fmt: skip


def test_what_is_handed_out_is_zero_and_apart() -> None:
    reserve = Reserve(4096)
    first, second = reserve.zeros(100, np.int8), reserve.zeros(100, np.float32)
    assert not first.any()
    assert not second.any()
    first.fill(7)
    second.fill(1.5)
    assert (first == 7).all()
    assert (second == 1.5).all()


def test_more_than_was_reserved_comes_from_the_system() -> None:
    reserve = Reserve(4096)
    whole, rest, small = (reserve.zeros(count, np.int8) for count in (4000, 5000, 90))
    for array in (whole, rest, small):
        array.fill(1)
    assert [array.sum() for array in (whole, rest, small)] == [4000, 5000, 90]


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:1"])
def test_only_a_pool_in_host_memory_that_is_there_is_reserved(device: str) -> None:
    assert (Reserve.of(start(device, bytes=4096)) is not None) == (device == "cpu")
    assert Reserve.of(start(device, blocks=2)) is None
    assert Reserve.of(start(device, bytes=host_memory().free)) is None

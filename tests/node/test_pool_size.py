"""The pool's size: the first setting decides, the three accounts must fit, and a refusal says what would."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvops.errors import ConfigError, KvopsError, NodeStartError
from kvops.machine import Memory
from kvops.node.pool_size import LEAST_BLOCKS, Needs, most_blocks, plan_blocks
from kvops.node.wire import PoolPlan
from kvops.units import parse_size

MIB = 2**20
MEMORY = Memory(total=10_000 * MIB, free=5_000 * MIB)
NEEDS = Needs(weights=1_000 * MIB, activations=500 * MIB, block=100 * MIB)


@pytest.mark.parametrize(
    ("plan", "blocks"),
    [
        (PoolPlan(block_size=16, blocks=7, bytes=1, memory_fraction=0.9), 7),
        (PoolPlan(block_size=16, bytes=1_050 * MIB), 10),
        (PoolPlan(block_size=16, memory_fraction=0.5), 17),
        (PoolPlan(block_size=16, memory_fraction=0.999), 34),
    ],
)
def test_the_first_setting_decides(plan: PoolPlan, blocks: int) -> None:
    assert plan_blocks(plan, NEEDS, MEMORY) == blocks


@pytest.mark.parametrize(
    ("plan", "pool", "remedy"),
    [
        (
            PoolPlan(block_size=16, blocks=36),
            "3.5 GiB (36 blocks)",
            "kv_cache.blocks to at most 35",
        ),
        (
            PoolPlan(block_size=16, bytes=3_700 * MIB),
            "3.6 GiB (37 blocks)",
            "kv_cache.bytes to at most 3500MiB",
        ),
    ],
)
def test_a_pool_that_does_not_fit_is_refused_with_the_accounts(
    plan: PoolPlan, pool: str, remedy: str
) -> None:
    with pytest.raises(NodeStartError) as caught:
        plan_blocks(plan, NEEDS, MEMORY)
    accounts = f"weights 1000 MiB + KV pool {pool} + activations 500 MiB = "
    assert accounts in caught.value.message
    assert "exceed the 4.9 GiB that are free" in caught.value.message
    assert remedy in caught.value.hint


@pytest.mark.parametrize(
    ("needs", "words"),
    [
        (
            Needs(5_000 * MIB, 100 * MIB, MIB),
            ["smaller model", "weights_dtype: int8", "102 MiB more"],
        ),
        (
            Needs(1_000 * MIB, 5_000 * MIB, MIB),
            ["runtime.max_batch_size", "runtime.max_batched_tokens to about 80%", "1002 MiB more"],
        ),
    ],
)
def test_where_no_pool_fits_the_rest_is_to_be_lowered(needs: Needs, words: list[str]) -> None:
    for plan in (PoolPlan(block_size=16, blocks=2), PoolPlan(block_size=16, memory_fraction=0.1)):
        with pytest.raises(NodeStartError) as caught:
            plan_blocks(plan, needs, MEMORY)
        for word in words:
            assert word in caught.value.hint


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (PoolPlan(block_size=16, blocks=1), ["kv_cache.blocks = 1", "at least 2"]),
        (PoolPlan(block_size=16, bytes=199 * MIB), ["kv_cache.bytes = 199 MiB", str(200 * MIB)]),
        (
            PoolPlan(block_size=16, memory_fraction=0.01),
            ["kv_cache.memory_fraction = 0.01", "200 MiB"],
        ),
    ],
)
def test_a_pool_too_small_to_serve_is_refused(plan: PoolPlan, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_blocks(plan, NEEDS, MEMORY)
    for word in words:
        assert word in str(caught.value)


def test_a_context_that_was_asked_for_must_fit_the_pool() -> None:
    needs = Needs(0, 0, MIB, context=100)
    assert plan_blocks(PoolPlan(block_size=16, blocks=7), needs, MEMORY) == 7
    with pytest.raises(ConfigError, match="max_context_length = 100: the pool") as caught:
        plan_blocks(PoolPlan(block_size=16, blocks=6), needs, MEMORY)
    assert "at least 7" in caught.value.hint
    assert "at most 96" in caught.value.hint


SIZES = st.integers(0, 2**36)


@given(
    needs=st.builds(Needs, SIZES, SIZES, st.integers(1, 2**30)),
    plan=st.builds(
        PoolPlan,
        block_size=st.just(16),
        blocks=st.none() | st.integers(1, 10_000),
        bytes=st.none() | SIZES,
        memory_fraction=st.floats(0.01, 0.99),
    ),
    free=SIZES,
)
def test_what_is_planned_fits_and_what_is_advised_is_accepted(
    needs: Needs, plan: PoolPlan, free: int
) -> None:
    memory = Memory(2**36, free)
    try:
        blocks = plan_blocks(plan, needs, memory)
    except KvopsError as error:
        _check_advice(error, plan, needs, memory)
        return
    assert blocks >= LEAST_BLOCKS
    assert needs.weights + blocks * needs.block + needs.activations <= free
    assert blocks <= most_blocks(plan, needs.weights, needs.block, memory)


def _check_advice(error: KvopsError, plan: PoolPlan, needs: Needs, memory: Memory) -> None:
    field, _, value = error.hint.rpartition(" ")
    if "kv_cache.blocks to at" in field:
        assert plan_blocks(PoolPlan(block_size=16, blocks=int(value)), needs, memory) == int(value)
    elif "kv_cache.bytes to at" in field and parse_size(value) >= LEAST_BLOCKS * needs.block:
        plan_blocks(PoolPlan(block_size=16, bytes=parse_size(value)), needs, memory)

"""Whatever happens around a request, its greedy output is that of its solo run: random schedules on the tiny model.

Arrivals, cancels, classes, tenants with quotas, shared prefixes, flushes, small pools and small steps, in float32.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kvops.node.engine.engine import Engine
from kvops.node.wire import KvQuota, PoolPlan, Prefix, TenantLimits
from tests.engine.driving import Result, collect, load, outputs, small_pool, submit

VOCABULARY = 322
SALTS = {"a": b"salt-a", "b": b"salt-b", "c": b"salt-c"}
LONGEST = 24
SYSTEM = tuple((7 * n) % VOCABULARY for n in range(40))
"""An operator's shared prefix: two full blocks and a bit."""


def _prompts() -> list[tuple[int, ...]]:
    source = random.Random(11)
    made = [tuple(source.choices(range(VOCABULARY), k=n)) for n in (1, 9, 16, 17, 40, 70, 110)]
    return [
        *made,
        SYSTEM + made[1],
        SYSTEM + made[2],
        made[5][:48] + made[0],
        made[6][:64] + made[2],
    ]


PROMPTS = _prompts()


@pytest.fixture(scope="module")
def solo(tiny_model: Path) -> list[list[int]]:
    """Each prompt with the engine to itself and nothing cached."""
    engine = load(tiny_model, weights_dtype="float32", pool=small_pool(256, prefix_caching=False))
    return [outputs(engine, [submit("r", prompt, max_tokens=LONGEST)])["r"] for prompt in PROMPTS]


PREFIX = Prefix(name="system", token_ids=SYSTEM, tenant="", salt=b"", shared=True)


def engine_for(source: random.Random, model: Path) -> Engine:
    """A node at the edge: little of everything."""
    quotas = {
        "a": TenantLimits(max_running=source.choice([None, 1, 2])),
        "b": TenantLimits(kv_quota=KvQuota(blocks=source.choice([9, 12, 14]))),
    }
    pool = PoolPlan(
        block_size=16,
        blocks=source.choice([10, 14, 20, 64]),
        watermark=source.choice([0.0, 0.1]),
        prefix_caching=source.random() < 0.7,
    )
    return load(
        model,
        weights_dtype="float32",
        pool=pool,
        max_batch_size=source.choice([2, 4, 16]),
        max_batched_tokens=source.choice([8, 16, 50, 256]),
        max_prefill_tokens=source.choice([None, 3, 20]),
        tenants=quotas,
        prefixes=(PREFIX,),
    )


def play(seed: int, model: Path, solo: list[list[int]]) -> Engine:
    source = random.Random(seed)
    engine = engine_for(source, model)
    results: dict[str, Result] = {}
    expected: dict[str, list[int]] = {}
    for at in range(40):
        for _ in range(source.choice([0, 0, 1, 3])):
            name, which = f"{at}-{len(expected)}", source.randrange(len(PROMPTS))
            tenant, count = source.choice(sorted(SALTS)), source.randint(1, LONGEST)
            expected[name] = solo[which][:count]
            engine.add(
                submit(
                    name, PROMPTS[which], max_tokens=count, tenant=tenant, salt=SALTS[tenant],
                    priority=source.choice(["online", "normal", "batch"]),
                )
            )  # fmt: skip
        if expected and source.random() < 0.1:
            engine.cancel(source.choice(sorted(expected)))
        if source.random() < 0.05:
            engine.flush_prefix_cache()
        collect(engine, results)
        assert engine.check() == []
    while engine.has_work():
        collect(engine, results)
    assert engine.check() == []
    _compare(results, expected)
    return engine


def _compare(results: dict[str, Result], expected: dict[str, list[int]]) -> None:
    assert results.keys() == expected.keys()
    for name, tokens in expected.items():
        got = results[name]
        if got.finish == "cancelled":
            assert got.tokens == tokens[: len(got.tokens)]
        else:
            assert (got.finish, got.tokens) == ("length", tokens), name


def check_idle(engine: Engine) -> None:
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.kv.used_blocks) == (0, 0, 0)
    assert stats.tenant_blocks == {}
    assert stats.invariant_violations == 0


@pytest.mark.parametrize("seed", range(24))
def test_outputs_are_those_of_solo_runs(seed: int, tiny_model: Path, solo: list[list[int]]) -> None:
    check_idle(play(seed, tiny_model, solo))


def test_the_schedules_do_stress(tiny_model: Path, solo: list[list[int]]) -> None:
    """Over the seeds above there were preemptions, evictions and hits, or the test above shows little."""
    stats = [play(seed, tiny_model, solo).stats() for seed in range(24)]
    assert sum(one.kv.preemptions for one in stats) > 10
    assert sum(one.kv.evictions for one in stats) > 10
    assert sum(one.prefix_cache.hit_tokens for one in stats) > 500


@pytest.mark.long
def test_outputs_are_those_of_solo_runs_for_long(tiny_model: Path, solo: list[list[int]]) -> None:
    for seed in range(1000, 1400):
        check_idle(play(seed, tiny_model, solo))

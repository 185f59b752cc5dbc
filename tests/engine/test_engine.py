"""The engine as a whole on the tiny model: ends, refusals, cancels, tenants, siblings, exhaustion, accounts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kvops.errors import ConfigError, KvopsError, ModelNotFound, NodeStartError
from kvops.node.engine.engine import Engine
from kvops.node.wire import PoolPlan
from tests.engine.driving import Result, collect, drain, load, outputs, small_pool, start, submit

LONG = list(range(1, 101))


def used(engine: Engine) -> int:
    return engine.stats().kv.used_blocks


def test_start_report(tiny_model: Path) -> None:
    told: list[tuple[str, str]] = []
    engine = Engine.load(start(tiny_model), lambda phase, detail: told.append((phase, detail)))
    phases = [(phase, detail) for phase, detail in told if detail]  # the rest says that it goes on
    assert [phase for phase, _ in phases] == [
        "model loaded",
        "pool initialised",
        "kernels compiled",
        "warm-up generation",
    ]
    assert "256 blocks, 4096 tokens" in phases[1][1]
    stats = engine.stats()
    assert (stats.steps, stats.last_step_at, stats.running, stats.waiting) == (0, None, 0, 0)
    assert (stats.kv.cached_blocks, stats.prefix_cache.query_tokens) == (0, 0)


@pytest.mark.parametrize(
    ("asked", "blocks", "limit"), [(None, 256, 512), (100, 256, 100), (None, 8, 128)]
)
def test_max_model_len_is_the_least_limit(
    asked: int | None, blocks: int, limit: int, tiny_model: Path
) -> None:
    engine = load(tiny_model, max_context_length=asked, pool=small_pool(blocks))
    assert engine.info.max_model_len == limit


def test_length_up_to_the_very_limit(tiny_model: Path) -> None:
    engine = load(tiny_model, pool=small_pool(8))
    engine.add(submit("fits", range(1, 101), max_tokens=28))
    engine.add(submit("over", range(1, 101), max_tokens=29))
    results = drain(engine)
    assert (results["fits"].finish, len(results["fits"].tokens)) == ("length", 28)
    assert results["over"].finish == "error"
    assert (
        "100 prompt tokens + max_tokens 29 exceed the limit of 128" in results["over"].ends[0].error
    )


@pytest.mark.parametrize(
    ("prompt", "params", "reason"),
    [
        ((), {}, "the prompt has no tokens"),
        ((1, 322), {}, "outside the vocabulary of 322"),
        ((1, -1), {}, "outside the vocabulary"),
        ((1,), {"max_tokens": 0}, "max_tokens is 0, must be at least 1"),
        ((1,), {"logit_bias": {999: 1.0}}, "outside the vocabulary"),
        ((1,), {"stop_token_ids": (-5,)}, "outside the vocabulary"),
    ],
)
def test_what_cannot_be_served_is_refused(
    prompt: tuple[int, ...], params: dict[str, Any], reason: str, engine: Engine
) -> None:
    engine.add(submit("bad", prompt, **params))
    engine.add(submit("good", [1, 2, 3]))
    results = drain(engine)
    assert results["bad"].finish == "error"
    assert reason in results["bad"].ends[0].error
    assert results["good"].finish == "length"


def test_eos_and_stop_ids_end_a_request(engine: Engine) -> None:
    tokens = outputs(engine, [submit("free", LONG, max_tokens=16)])["free"]
    third = tokens[2]
    assert third not in tokens[:2]
    engine.add(submit("stopped", LONG, max_tokens=16, stop_token_ids=(third,)))
    result = drain(engine)["stopped"]
    assert (result.finish, result.tokens) == ("stop", tokens[:2])
    assert result.ends[0].stop_token_id == third

    bias = {321: 1000.0}
    engine.add(submit("eos", LONG, ignore_eos=False, logit_bias=bias))
    engine.add(submit("later", LONG, ignore_eos=False, logit_bias=bias, min_tokens=3))
    results = drain(engine)
    assert (results["eos"].finish, results["eos"].tokens) == ("stop", [])
    assert (results["later"].finish, len(results["later"].tokens)) == ("stop", 3)


def test_deltas_tell_the_story(engine: Engine) -> None:
    engine.add(submit("r", LONG, max_tokens=3, logprobs=1))
    started: list[str] = []
    first = engine.step(started.extend)
    assert started == ["r"]
    assert (first.prefill_tokens, first.decode_tokens) == (100, 0)
    second = engine.step(started.extend)
    assert started == ["r"]
    assert (second.prefill_tokens, second.decode_tokens) == (0, 1)
    third = engine.step()
    deltas = [step.deltas[0] for step in (first, second, third)]
    assert [delta.finish for delta in deltas] == [None, None, "length"]
    for delta in deltas:
        (token,), (logprob,) = delta.token_ids, delta.logprobs
        assert logprob.top == ((token, logprob.logprob),)
    assert not engine.has_work()


def test_cancel_while_waiting_in_prefill_and_in_decode(tiny_model: Path) -> None:
    engine = load(tiny_model, max_batched_tokens=32, max_batch_size=1)
    results: dict[str, Result] = {}
    engine.add(submit("running", LONG))
    engine.add(submit("waiting", LONG[::-1]))
    engine.cancel("waiting")
    collect(engine, results)
    assert results["waiting"].finish == "cancelled"
    assert engine.stats().requests[0].state == "prefill"
    assert used(engine) == 7
    engine.cancel("running")
    assert used(engine) == 0

    engine.add(submit("decoding", LONG))
    while engine.stats().requests[0].state != "decode":
        collect(engine, results)
    engine.cancel("decoding")
    engine.cancel("decoding")
    engine.cancel("unknown")
    assert used(engine) == 0
    results |= drain(engine)
    assert results["decoding"].finish == "cancelled"


def test_salts_keep_tenants_prefixes_apart(engine: Engine) -> None:
    for tenant, salt in (("a", b"one"), ("b", b"two"), ("a", b"one")):
        engine.add(submit("r", LONG, tenant=tenant, salt=salt))
        cached = drain(engine)["r"].cached_tokens
        assert cached == (0 if engine.stats().prefix_cache.query_tokens <= 200 else 96)
    assert engine.stats().prefix_cache.hit_tokens == 96


@pytest.mark.parametrize("caching", [True, False])
def test_siblings_share_their_prompt(caching: bool, tiny_model: Path) -> None:
    engine = load(tiny_model, pool=small_pool(64, prefix_caching=caching))
    engine.add(submit("0", LONG))
    for index in (1, 2, 3):
        engine.add(submit(str(index), LONG, leader="0"))
    results: dict[str, Result] = {}
    collect(engine, results)
    assert (engine.stats().running, engine.stats().waiting) == (1, 3)
    collect(engine, results)
    assert used(engine) == 6 + 4
    assert engine.kv_map(64).cells.count("s") == 6
    assert engine.stats().tenant_blocks == {"a": 10}
    while engine.has_work():
        collect(engine, results)
    assert engine.check() == []
    assert all(results[str(index)].cached_tokens == 96 for index in (1, 2, 3))
    assert len({tuple(result.tokens) for result in results.values()}) == 1


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_siblings_go_on_without_their_leader(steps: int, tiny_model: Path) -> None:
    engine = load(tiny_model, max_batched_tokens=64)
    expected = outputs(engine, [submit("x", LONG)])["x"]
    engine.flush_prefix_cache()
    engine.add(submit("0", LONG))
    engine.add(submit("1", LONG, leader="0"))
    engine.add(submit("2", LONG, leader="never there"))
    results: dict[str, Result] = {}
    for _ in range(steps):
        collect(engine, results)
    engine.cancel("0")
    while engine.has_work():
        collect(engine, results)
    assert results["1"].tokens == results["2"].tokens == expected


def test_a_pool_of_few_blocks_serves_many(tiny_model: Path) -> None:
    prompts = {str(i): [(i * 31 + j * 7) % 300 for j in range(5 + 9 * (i % 6))] for i in range(24)}
    plenty = load(tiny_model)
    expected = outputs(plenty, [submit(i, p, max_tokens=30) for i, p in prompts.items()])
    tight = load(tiny_model, pool=small_pool(7, watermark=0.0))
    assert outputs(tight, [submit(i, p, max_tokens=30) for i, p in prompts.items()]) == expected
    stats = tight.stats()
    assert stats.kv.preemptions > 0
    assert stats.kv.evictions > 0
    assert stats.prefix_cache.query_tokens == sum(map(len, prompts.values())), (
        "recomputed ones excluded"
    )


def test_seeded_sampling_survives_batch_and_preemption(tiny_model: Path) -> None:
    def submits() -> list[Any]:
        return [
            submit(
                str(i),
                LONG[: 20 + i],
                max_tokens=40,
                temperature=0.8,
                top_p=0.9,
                seed=i,
                frequency_penalty=0.3,
            )
            for i in range(6)
        ]

    alone: dict[str, list[int]] = {}
    engine = load(tiny_model)
    for one in submits():
        alone |= outputs(engine, [one])
    assert outputs(engine, submits()) == alone
    tight = load(tiny_model, pool=small_pool(9, watermark=0.0))
    assert outputs(tight, submits()) == alone
    assert tight.stats().kv.preemptions > 0


def test_better_classes_run_first_and_are_preempted_last(tiny_model: Path) -> None:
    engine = load(tiny_model, max_batch_size=1)
    for name in ("batch", "normal", "online"):
        engine.add(submit(name, LONG, priority=name))
    order: list[str] = []
    while engine.has_work():
        engine.step(order.extend)
    assert order == ["online", "normal", "batch"]

    tight = load(tiny_model, pool=small_pool(8, watermark=0.0))
    for at, name in enumerate(("batch", "normal", "online")):
        tight.add(submit(name, LONG[at : at + 30], max_tokens=60, priority=name))
    worst: dict[str, int] = {}
    while tight.has_work():
        tight.step()
        worst |= {row.request_id: row.preemptions for row in tight.stats().requests}
    assert worst["online"] == 0
    assert worst["batch"] > 0


def test_a_nan_ends_one_request_and_spoils_no_other(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = LONG[::-1]
    expected = outputs(engine, [submit("other", other)])["other"]
    engine.flush_prefix_cache()
    model = engine._runner.model
    intact = model.logits

    def spoilt(*step: Any) -> torch.Tensor:
        logits = intact(*step)
        logits[0] = torch.nan
        return logits

    engine.add(submit("sick", LONG))
    engine.add(submit("other", other))
    monkeypatch.setattr(model, "logits", spoilt)
    results: dict[str, Result] = {}
    collect(engine, results)
    monkeypatch.setattr(model, "logits", intact)
    results["other"] = drain(engine)["other"] if "other" not in results else results["other"]
    assert results["sick"].finish == "error"
    assert "finite" in results["sick"].ends[0].error
    assert outputs(engine, [submit("again", other)])["again"] == expected
    engine.add(submit("retry", LONG))
    assert drain(engine)["retry"].cached_tokens == 0, "what the sick one computed is not reused"


def test_a_nan_in_the_pool_stays_with_its_owner(tiny_model: Path) -> None:
    """Blocks of a broken request, reused by others and used for padding, do not carry its NaN over."""
    engine = load(tiny_model, pool=small_pool(32))
    expected = outputs(engine, [submit(str(n), LONG[:n]) for n in (3, 40, 60)])
    engine.flush_prefix_cache()
    pool = engine._runner.model._pool  # type: ignore[attr-defined]
    pool.keys.fill(np.nan)
    pool.values.fill(np.nan)
    assert outputs(engine, [submit(str(n), LONG[:n]) for n in (3, 40, 60)]) == expected


def test_ledger_closes(engine: Engine) -> None:
    engine.add(submit("r", LONG))
    engine.step()
    ledger = engine.stats().memory
    parts = (ledger.weights, ledger.kv_reserved, ledger.activations, ledger.other, ledger.free)
    assert sum(parts) == ledger.total
    assert min(parts) >= 0
    assert ledger.kv_used == 7 * engine.info.bytes_per_block
    assert ledger.kv_reserved == 256 * engine.info.bytes_per_block
    assert ledger.weights >= engine.info.parameters * 4


def test_equal_blocks_of_two_that_run_together_are_held_once(engine: Engine) -> None:
    """Also those they generate: greedy, they are alike to the end."""
    alone = engine.stats().kv.used_blocks
    for name in ("one", "other"):
        engine.add(submit(name, LONG, max_tokens=28))
    for _ in range(27):
        engine.step()
    assert alone == 0
    assert engine.stats().kv.used_blocks == 8 + 1, "all but the last"
    results = drain(engine)
    assert results["one"].tokens == results["other"].tokens
    assert [results[name].cached_tokens for name in ("one", "other")] == [0, 0]


def test_waste_is_the_unfilled_part_of_held_blocks(engine: Engine) -> None:
    assert engine.stats().kv.waste_ratio == 0.0
    engine.add(submit("r", LONG))
    engine.step()
    kv = engine.stats().kv
    assert kv.waste_ratio == pytest.approx((7 * 16 - 101) / (7 * 16))
    assert kv.fragmentation_ratio == pytest.approx(1 / 7), "all blocks but the last are full"
    while len(engine._scheduler.running[0].tokens) < 112:
        engine.step()
    kv = engine.stats().kv
    assert (kv.waste_ratio, kv.fragmentation_ratio) == (0.0, 0.0)


def test_waste_at_500_tokens_is_under_four_percent(tiny_model: Path) -> None:
    engine = load(tiny_model, pool=small_pool(400), max_batched_tokens=4096)
    for index in range(8):
        engine.add(
            submit(str(index), [(index + 3 * j) % 300 for j in range(490 + index)], max_tokens=8)
        )
    ratios = []
    while engine.has_work():
        engine.step()
        if engine.stats().running == 8:
            ratios.append(engine.stats().kv.waste_ratio)
    assert ratios
    assert max(ratios) < 0.04


def test_rows_show_what_happens(engine: Engine) -> None:
    engine.add(submit("r", LONG, tenant="t", priority="online"))
    row = engine.stats().requests[0]
    assert (row.state, row.kv_blocks, row.ttft_seconds) == ("waiting", 0, None)
    engine.step()
    row = engine.stats().requests[0]
    assert (row.state, row.kv_blocks, row.generated_tokens, row.tenant) == ("decode", 7, 1, "t")
    assert row.ttft_seconds is not None
    assert 0 <= row.wait_seconds <= row.ttft_seconds <= row.age_seconds


def test_flush(engine: Engine) -> None:
    outputs(engine, [submit("r", LONG)])
    assert engine.flush_prefix_cache() == 7
    assert engine.stats().kv.free_blocks == 256


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"device": "tpu"}, ConfigError, "runtime.device"),
        ({"pool": PoolPlan(block_size=16, bytes=10)}, ConfigError, "the pool holds 0 blocks"),
        (
            {"pool": small_pool(8), "max_context_length": 129},
            ConfigError,
            "max_context_length = 129: the pool",
        ),
        ({"pool": PoolPlan(block_size=16, bytes=2**50)}, NodeStartError, "kv_cache.bytes"),
        ({"pool": PoolPlan(block_size=16, blocks=2**40)}, NodeStartError, "exceed"),
    ],
)
def test_a_bad_start_is_refused(
    settings: dict[str, Any], error: type[KvopsError], words: str, tiny_model: Path
) -> None:
    with pytest.raises(error, match=words):
        load(tiny_model, **settings)


def test_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        load(tmp_path / "nothing")

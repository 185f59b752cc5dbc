"""Memory that is far too small: everyone waits or is put back, nobody crashes, every output is that of a solo run."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from kvops.node.engine.engine import Engine
from kvops.node.wire import Submit
from tests.engine.driving import Result, collect, drain, load, outputs, small_pool, submit

BLOCKS = 6
"""96 tokens, for 48 requests of up to 90."""


def crowd(source: random.Random) -> list[Submit]:
    """24 prompts, every third asked for three times over: a leader and two siblings."""
    made: list[Submit] = []
    for index in range(24):
        prompt = source.choices(range(300), k=source.choice([1, 15, 16, 17, 40, 70]))
        length = source.randint(1, 90 - len(prompt))
        priority = source.choice(["online", "normal", "batch"])
        made += [
            submit(
                f"{index}-{sibling}", prompt, max_tokens=length, priority=priority,
                leader=f"{index}-0" if sibling else None,
            )
            for sibling in range(3 if index % 3 == 0 else 1)
        ]  # fmt: skip
    return made


@pytest.fixture(scope="module")
def roomy(tiny_model: Path) -> Engine:
    return load(tiny_model, pool=small_pool(256, prefix_caching=False))


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("watermark", [0.0, 0.3])
def test_a_crowd_gets_through_a_few_blocks(
    watermark: float, caching: bool, tiny_model: Path, roomy: Engine
) -> None:
    requests = crowd(random.Random(5))
    pool = small_pool(BLOCKS, watermark=watermark, prefix_caching=caching)
    engine = load(tiny_model, pool=pool, batch_max_load=100)
    for request in requests:
        engine.add(request)
    results = drain(engine)
    assert {result.finish for result in results.values()} == {"length"}
    stats = engine.stats()
    assert stats.kv.preemptions > 0 or watermark
    assert (stats.kv.used_blocks, stats.running, stats.waiting) == (0, 0, 0)
    for request in requests:
        if request.leader is None:
            alone = outputs(roomy, [request])[request.request_id]
            assert results[request.request_id].tokens == alone, request.request_id


def test_what_can_never_fit_is_refused_at_once_and_holds_up_nobody(tiny_model: Path) -> None:
    engine = load(tiny_model, pool=small_pool(BLOCKS))
    results: dict[str, Result] = {}
    engine.add(submit("running", range(1, 30), max_tokens=40))
    collect(engine, results)
    engine.add(submit("over", range(1, 60), max_tokens=BLOCKS * 16 - 58))
    engine.add(submit("most", range(1, 60), max_tokens=BLOCKS * 16 - 59))
    collect(engine, results)
    assert results["over"].finish == "error"
    assert f"exceed the limit of {BLOCKS * 16} tokens" in results["over"].ends[0].error
    rest = drain(engine)
    assert Counter(result.finish for result in rest.values()) == {"length": 2}


def test_a_watermark_leaves_room_to_grow(tiny_model: Path) -> None:
    """With it, fewer are let in, and fewer are put back."""
    preemptions = []
    for watermark in (0.0, 0.5):
        engine = load(tiny_model, pool=small_pool(12, watermark=watermark, prefix_caching=False))
        for index in range(12):
            engine.add(submit(str(index), [index * 20 + n for n in range(16)], max_tokens=30))
        drain(engine)
        preemptions.append(engine.stats().kv.preemptions)
    assert preemptions[1] < preemptions[0]

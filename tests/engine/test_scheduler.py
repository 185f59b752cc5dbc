"""Who runs: classes, tenants, sizes and the pace of prompts, counted in steps, without a model."""

from __future__ import annotations

from typing import Any

import pytest

from kvops.node.engine.block_pool import BlockPool
from kvops.node.engine.pace import Pace
from kvops.node.engine.queue import MAX_OVERTAKEN
from kvops.node.engine.request import Obstacle, Request
from kvops.node.engine.scheduler import Batch, Bounds, Scheduler
from kvops.node.engine.tenants import Limits, Tenants
from tests.engine.driving import submit

SIZE = 4


class Bench:
    """A scheduler whose requests get made-up tokens; every step is kept."""

    def __init__(
        self, blocks: int = 64, batch: int = 8, tokens: int = 64, *, pace: int | None = None,
        limits: dict[str, Limits] | None = None, watermark: float = 0.0, batch_load: int | None = None,
        caching: bool = True,
    ) -> None:  # fmt: skip
        self.scheduler = Scheduler(
            BlockPool(blocks, SIZE, prefix_caching=caching),
            Bounds(batch, tokens, watermark, batch_load),
            tenants=Tenants(limits),
            pace=Pace(pace, tokens),
        )
        self.requests: dict[str, Request] = {}
        self.started: dict[str, int] = {}
        """Step in which each request started."""
        self.steps = 0

    def add(self, name: str, length: int = 4, **fields: Any) -> Request:
        index = len(self.requests)
        tokens = [index * 50 % 997 + n for n in range(length)]
        request = Request.from_submit(submit(name, tokens, **fields), index)
        self.requests[name] = request
        self.scheduler.add(request)
        return request

    def step(self) -> Batch:
        batch = self.scheduler.schedule()
        for request in batch.started:
            self.started[request.request_id] = self.steps
        self.steps += 1
        for chunk in batch.chunks:
            request, samples = chunk.request, chunk.samples
            self.scheduler.computed(chunk)
            if samples:
                request.first_token_at = 0.0
                request.tokens.append(0)
                if request.generated == request.params.max_tokens:
                    self.scheduler.finish(request)
        assert self.scheduler.check() == []
        return batch

    def run(self, steps: int = 10_000) -> None:
        for _ in range(steps):
            if not self.scheduler.has_work():
                return
            self.step()

    def running(self) -> list[str]:
        return [request.request_id for request in self.scheduler.running]


def lengths(batch: Batch) -> list[tuple[str, int]]:
    return [(chunk.request.request_id, chunk.length) for chunk in batch.chunks]


def test_decodes_come_before_prefills() -> None:
    bench = Bench(tokens=10, pace=9)
    bench.add("first", 9, max_tokens=9)
    bench.step()
    bench.add("second", 9)
    assert lengths(bench.step()) == [("first", 1), ("second", 9)]


def test_admission_reserves_the_whole_prompt_and_the_watermark() -> None:
    bench = Bench(blocks=10, watermark=0.2)
    for name, length in (("a", 16), ("b", 16), ("c", 1)):
        bench.add(name, length)
    bench.scheduler.schedule()
    assert [len(request.table) for request in bench.scheduler.running] == [4, 4]
    assert len(bench.scheduler.waiting) == 1, "one block more would touch the watermark"


# Classes.


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize(("blocks", "batch"), [(64, 4), (12, 8)])
def test_a_better_class_is_in_the_very_next_step(blocks: int, batch: int, caching: bool) -> None:
    """Whether it is the batch that is full, or the pool."""
    bench = Bench(blocks=blocks, batch=batch, caching=caching, batch_load=8)
    for index in range(4):
        bench.add(f"batch-{index}", 8, priority="batch", max_tokens=4)
    bench.step()
    assert bench.running() == ["batch-0", "batch-1", "batch-2", "batch-3"]
    bench.add("online", 12, priority="online", max_tokens=2)
    batch_of = bench.step()
    assert batch_of.started == (bench.requests["online"],)
    assert ("online", 12) in lengths(batch_of), "its whole prompt is read at once"
    assert "batch-3" not in bench.running(), "the youngest of the lowest class gave way"
    assert "batch-0" in bench.running()
    bench.run()
    assert {r.generated for r in bench.requests.values()} == {4, 2}


def test_nobody_leaves_where_that_makes_no_room() -> None:
    bench = Bench(blocks=12)
    bench.add("online-0", 32, priority="online", max_tokens=4)
    bench.add("batch", 4, priority="batch", max_tokens=4)
    bench.step()
    bench.add("online-1", 30, priority="online", max_tokens=2)
    bench.step()
    assert bench.running() == ["online-0", "batch"], (
        "without the two blocks of `batch` it is no better off"
    )
    bench.run()
    assert bench.requests["batch"].preemptions == 0


def test_a_lower_class_of_one_tenant_gives_way_within_its_quota() -> None:
    bench = Bench(limits={"a": Limits(max_running=1), "b": Limits(kv_blocks=4)})
    bench.add("a-batch", priority="batch", tenant="a", max_tokens=8)
    bench.add("b-batch", 12, priority="batch", tenant="b", max_tokens=4)
    bench.step()
    bench.add("a-online", priority="online", tenant="a", max_tokens=2)
    bench.add("b-online", 8, priority="online", tenant="b", max_tokens=2)
    bench.step()
    assert bench.running() == ["a-online", "b-online"]
    bench.run()
    assert [bench.requests[name].generated for name in ("a-batch", "b-batch")] == [8, 4]


def test_nobody_of_another_tenant_gives_way_to_a_quota() -> None:
    bench = Bench(limits={"a": Limits(max_running=1), "c": Limits(kv_blocks=4)}, batch_load=8)
    for name, length in (("a-batch", 4), ("c-batch", 12), ("b-batch", 4)):
        bench.add(name, length, priority="batch", tenant=name[0], max_tokens=4)
    bench.step()
    for name, length in (("a-online", 4), ("c-online", 8)):
        bench.add(name, length, priority="online", tenant=name[0], max_tokens=2)
    bench.step()
    assert bench.running() == ["a-online", "c-online", "b-batch"]
    bench.run()
    assert bench.requests["b-batch"].preemptions == 0


def test_a_large_request_of_a_lower_class_holds_up_nobody_better() -> None:
    bench = Bench(blocks=16)
    bench.add("running", 32, max_tokens=32)
    bench.step()
    bench.add("large", 40, priority="batch", max_tokens=2)
    bench.step()
    bench.add("online", 8, priority="online", max_tokens=2)
    bench.step()
    assert bench.running() == ["online", "running"]


def test_what_only_those_hold_who_make_room_can_still_be_shared() -> None:
    """Without the cache, a block is forgotten as soon as nobody holds it."""
    bench = Bench(batch=1, caching=False, batch_load=8)
    worse = bench.add("batch", 12, priority="batch", max_tokens=4)
    bench.step()
    same = submit("sibling", worse.tokens[:12], priority="online", leader="has ended", max_tokens=2)
    sibling = bench.requests["sibling"] = Request.from_submit(same, 1)
    bench.scheduler.add(sibling)
    assert lengths(bench.step()) == [("sibling", 4)], "the other two blocks were there"
    assert worse.preemptions == 1
    bench.run()
    assert (worse.generated, sibling.generated) == (4, 2)


@pytest.mark.parametrize("obstacle", ["node", "tenant"])
def test_a_step_looks_past_a_few_only(obstacle: Obstacle) -> None:
    """Of a long queue without room: a step's work does not grow with it."""
    bench = Bench()
    for index in range(100):
        bench.add(str(index), tenant="a" if index < 50 else "b")
    queue = bench.scheduler.waiting
    looked = 0
    for request in queue.candidates([]):
        looked += 1
        request.refused_for = obstacle
        queue.no_room(request)
    assert looked == (4 if obstacle == "node" else 8), "tenants do not stand in each other's way"


def test_batch_waits_for_the_load_to_fall() -> None:
    bench = Bench(batch_load=2)
    for index in range(2):
        bench.add(f"online-{index}", priority="online", max_tokens=4 + 2 * index)
    bench.add("batch", priority="batch", max_tokens=2)
    for _ in range(4):
        bench.step()
        assert "batch" not in bench.started
    bench.step()
    assert bench.started["batch"] == 4, "one of the two is done"


# Sizes.


def test_small_ones_pass_a_large_one_but_not_for_ever() -> None:
    bench = Bench(blocks=16, batch=32)
    bench.add("running", 20, max_tokens=20)
    bench.step()
    large = bench.add("large", 48, max_tokens=2)
    for index in range(40):
        bench.add(f"small-{index}", 4, max_tokens=4)
    bench.run()
    before = [name for name, at in bench.started.items() if at < bench.started["large"]]
    assert len(before) == 1 + MAX_OVERTAKEN
    assert large.overtaken == MAX_OVERTAKEN


def test_a_short_prompt_is_not_behind_a_long_one() -> None:
    bench = Bench(blocks=512, tokens=16)
    bench.add("long", 1000, max_tokens=2)
    bench.step()
    short = bench.add("short", 12, max_tokens=2)
    bench.step()
    bench.step()
    assert short.generated >= 1
    bench.run()
    assert bench.requests["long"].generated == 2


def test_a_long_prompt_is_not_held_up_by_many_short_ones() -> None:
    bench = Bench(blocks=512, batch=8, tokens=16, pace=16)
    long = bench.add("long", 200, max_tokens=1)
    for index in range(200):
        bench.add(f"short-{index}", 16, max_tokens=1)
    for _ in range(200 // 8):
        bench.step()
    assert long.computed == 0
    assert long.generated == 1, "it had half of every step"


# Pace.


def test_the_pace_bounds_prompts_only_where_somebody_waits_for_a_token() -> None:
    bench = Bench(blocks=256, tokens=64, pace=5)
    bench.add("long", 200, max_tokens=2)
    assert lengths(bench.step()) == [("long", 64)]
    bench.add("stream", 4, max_tokens=8)
    assert lengths(bench.step()) == [("long", 60), ("stream", 4)]
    assert lengths(bench.step()) == [("stream", 1), ("long", 5)]
    bench.add("online", 32, priority="online", max_tokens=2)
    assert lengths(bench.step()) == [("stream", 1), ("online", 32)], (
        "who is better does not wait for it"
    )


def test_the_pace_follows_what_steps_take() -> None:
    pace = Pace(None, 512)
    assert pace.limit(1) == 32, "nothing is known yet"
    pace.observe(0.020, decodes=1, prefill_tokens=0)
    pace.observe(0.020 + 0.100, decodes=1, prefill_tokens=50)
    assert pace.limit(1) == 12, "(2.2 - 1) x 20 ms at 2 ms a token"
    for _ in range(40):
        pace.observe(0.020 + 0.005, decodes=1, prefill_tokens=10)
    assert pace.limit(1) == 48
    pace.observe(0.200, decodes=32, prefill_tokens=0)
    assert pace.limit(32) == 480
    for _ in range(40):
        pace.observe(9.0, decodes=1, prefill_tokens=8)
    assert pace.limit(1) == 2, "a prompt goes on, however slow"
    assert Pace(None, 4).limit(1) == 4
    assert Pace(100, 512).limit(1) == 100


# Tenants.


@pytest.mark.parametrize("limits", [Limits(max_running=2), Limits(kv_blocks=8)])
def test_a_noisy_tenant_holds_up_nobody_else(limits: Limits) -> None:
    """200 requests of one tenant wait; each of the other's starts in the step after it came."""
    bench = Bench(blocks=64, batch=8, limits={"noisy": limits})
    for index in range(200):
        bench.add(f"noisy-{index}", 12, tenant="noisy", max_tokens=4)
    for index in range(40):
        bench.add(f"quiet-{index}", 8, tenant="quiet", max_tokens=2)
        due = bench.steps
        bench.step()
        assert bench.started[f"quiet-{index}"] == due
        assert sum(name.startswith("noisy") for name in bench.running()) <= 2
    bench.run()
    assert len(bench.started) == 240


def test_a_shared_prefix_counts_once_a_tenant() -> None:
    bench = Bench(limits={"a": Limits(kv_blocks=6)})
    prompt = list(range(17))
    for name in ("one", "two"):
        request = Request.from_submit(submit(name, prompt, max_tokens=3), len(bench.requests))
        bench.requests[name] = request
        bench.scheduler.add(request)
        bench.step()
    assert bench.running() == ["one", "two"]
    assert bench.scheduler.tenants.held() == {"a": 6}


def test_within_a_quota_a_large_one_does_not_starve() -> None:
    bench = Bench(blocks=64, batch=32, limits={"a": Limits(kv_blocks=8)})
    bench.add("running", 12, tenant="a", max_tokens=12)
    bench.step()
    large = bench.add("large", 24, tenant="a", max_tokens=2)
    for index in range(40):
        bench.add(f"small-{index}", 3, tenant="a", max_tokens=1)
        bench.add(f"other-{index}", 3, tenant="b", max_tokens=1)
    bench.run()
    passed = [
        n
        for n, at in bench.started.items()
        if n.startswith("small") and at < bench.started["large"]
    ]
    assert len(passed) == large.overtaken == MAX_OVERTAKEN
    assert bench.started["other-39"] <= 10, "another tenant's go by"

"""What runs and what waits when the engine preempts, and how old a reading made of two sources is."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from kvops.config.load import load_config
from kvops.config.settings import Settings
from kvops.errors import QueueFull
from kvops.node.sampling import SamplingParams
from kvops.node.state import NodeView
from kvops.node.wire import EngineStats, Submit
from kvops.telemetry.snapshot import (
    Known,
    KvUsage,
    MemoryLedger,
    NotExposed,
    PrefixCache,
    RequestState,
)
from tests.node.test_answers import Bench

ROW_STATES = dict[str, RequestState]


def stats(states: ROW_STATES, *, free: int = 8, at: float | None = None) -> EngineStats:
    from kvops.node.engine.request import Request

    params = SamplingParams(max_tokens=8)
    rows = []
    for name, state in states.items():
        submit = Submit(
            request_id=name, prompt_token_ids=(1,), params=params, tenant="default", salt=b""
        )
        rows.append(
            msgspec.structs.replace(
                Request.from_submit(submit, 0).row(time.monotonic()), state=state
            )
        )
    return EngineStats(
        at=time.time() if at is None else at,
        steps=1,
        last_step_at=None,
        running=sum(state in ("prefill", "decode") for state in states.values()),
        waiting=sum(state in ("waiting", "preempted") for state in states.values()),
        kv=KvUsage(16, 8, 8 - free, 0, free, 1024, 0.0, 0, 0),
        prefix_cache=PrefixCache(True, 0, 0, 16),
        memory=MemoryLedger("cpu", 6, 1, 1, 1, 1, 2, 0, 0),
        requests=tuple(rows),
        tenant_blocks={},
        invariant_violations=0,
    )


def view_of(bench: Bench) -> NodeView:
    settings = Settings(load_config(None, {"model.name": "m"}))
    return NodeView(settings, bench.supervisor, bench.admission, bench.meter, "m", "r")


async def test_a_preempted_request_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, monkeypatch, max_batch_size=4)
    for name in "abc":
        bench.admit(name)
    for name in "ab":
        bench.sinks[name].started()
    bench.supervisor.stats = stats({"a": "decode", "b": "preempted", "c": "waiting"})
    view = view_of(bench)
    queue = view.queue()
    assert (queue.running, queue.waiting) == (1, 2)
    assert sum(queue.waiting_by_class.values()) == 2
    assert queue.oldest_wait_seconds is not None
    (tenant,) = view.tenants()
    assert (tenant.running, tenant.waiting) == (1, 2)
    assert [row.state for row in view.requests()] == ["prefill", "preempted", "waiting"]


async def test_a_free_slot_without_blocks_is_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, monkeypatch, max_batch_size=16, max_queue=2)
    bench.supervisor.stats = stats({}, free=3)
    for name in "abcde":  # one block each: three start, two wait
        bench.admit(name)
    with pytest.raises(QueueFull):
        bench.admit("f")
    for name in "abc":
        bench.sinks[name].started()
    with pytest.raises(QueueFull):
        bench.admit("f")
    bench.supervisor.stats = stats(dict.fromkeys("abc", "decode"), free=1)
    bench.admit("f")


async def test_nothing_starts_while_the_engine_takes_requests_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, monkeypatch, max_batch_size=16, max_queue=1)
    bench.admit("a")
    bench.sinks["a"].started()
    bench.supervisor.stats = stats({"a": "preempted"})
    with pytest.raises(QueueFull):
        bench.admit("b")


async def test_a_reading_of_two_sources_is_as_old_as_the_older(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, monkeypatch)
    bench.admit("a")
    old = time.time() - 5
    bench.supervisor.stats = stats({"a": "decode"}, at=old)
    snapshot = view_of(bench).snapshot()
    for reading in (
        snapshot.requests,
        snapshot.tenants,
        snapshot.queue,
        snapshot.progress,
        snapshot.kv,
    ):
        assert isinstance(reading, Known)
        assert reading.at == old


async def test_no_engine_is_not_no_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, monkeypatch)
    view = view_of(bench)
    assert isinstance(view.snapshot().requests, Known), "none in flight is known without an engine"
    bench.admit("a")
    assert isinstance(view.snapshot().requests, NotExposed)
    assert isinstance(view.snapshot().tenants, NotExposed)

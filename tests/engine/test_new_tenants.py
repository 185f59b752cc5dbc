"""Bounds of tenants that change while their requests run: new ones for who comes, no less for who is there."""

from __future__ import annotations

from pathlib import Path

from kvops.node.engine.tenants import Limits, Tenants
from kvops.node.wire import KvQuota, TenantLimits
from tests.engine.driving import Result, collect, load, small_pool, submit
from tests.engine.test_scheduler import Bench


def quota(blocks: int | None) -> dict[str, TenantLimits]:
    return {"t": TenantLimits(kv_quota=KvQuota(blocks=blocks))}


def test_who_runs_grows_under_the_quota_that_it_came_under(tiny_model: Path) -> None:
    engine = load(tiny_model, pool=small_pool(32), tenants=quota(8))
    engine.add(submit("old", range(20), max_tokens=80, tenant="t"))
    results: dict[str, Result] = {}
    collect(engine, results)
    engine.set_tenants(quota(2), TenantLimits())
    assert engine.info.kv_quota_blocks == {"t": 2}
    engine.add(submit("large", range(20), max_tokens=80, tenant="t"))
    engine.add(submit("small", range(100, 110), max_tokens=10, tenant="t"))
    while engine.has_work():
        collect(engine, results)
        assert engine.check() == []
    assert (results["old"].finish, len(results["old"].tokens)) == ("length", 80)
    assert results["large"].finish == "error"
    assert (results["small"].finish, len(results["small"].tokens)) == ("length", 10)
    assert engine.stats().kv.preemptions == 0


def test_who_waits_is_let_in_by_a_larger_quota_at_once() -> None:
    bench = Bench(limits={"t": Limits(max_running=1)})
    bench.add("a", tenant="t", max_tokens=50)
    bench.add("b", tenant="t", max_tokens=50)
    bench.step()
    assert set(bench.started) == {"a"}
    tenants: Tenants = bench.scheduler.tenants
    tenants._limits = {"t": Limits(max_running=2)}
    bench.scheduler.look_again()
    bench.step()
    assert set(bench.started) == {"a", "b"}

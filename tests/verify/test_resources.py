from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

import pytest

from kvops.telemetry import prometheus
from kvops.telemetry.snapshot import MemoryLedger
from kvops.verify.check import Finding, Outcome
from kvops.verify.checks.resources import (
    GrowthParameters,
    growing,
    judge_growth,
    judge_peak,
    trends_of,
)
from kvops.verify.soaked import Soaked
from kvops.verify.watch import Readings, levels
from tests.load.made import answer, run

GIB, MIB = 2**30, 2**20
P = GrowthParameters()


def ledger(device: str, other: float, reserved: float = 0.1) -> MemoryLedger:
    total, weights, kv = 100 * GIB, 10 * GIB, int(reserved * 100 * GIB)
    used = int(other * 100 * GIB)
    return MemoryLedger(
        device, total, weights, kv, GIB, used, total - weights - kv - GIB - used, 0, 0
    )


def peak(memory: MemoryLedger, seen: Sequence[float] = ()) -> Outcome:
    try:
        return judge_peak(memory, seen, 0.9, {})
    except Finding as finding:
        return finding.outcome


@pytest.mark.parametrize(
    ("memory", "seen", "wanted", "remedy"),
    [
        (ledger("cuda:0 H200", 0.1), (), "pass", ""),
        (ledger("cuda:0 H200", 0.1, reserved=0.8), (), "fail", "memory_fraction"),
        (ledger("cuda:0 H200", 0.1), (0.5, 0.95, 0.5), "fail", "memory_fraction"),
        (ledger("cpu", 0.1), (0.5,), "pass", ""),
        (ledger("cpu", 0.1, reserved=0.85), (), "fail", "memory_fraction"),
        (ledger("cpu", 0.75), (), "fail", "what else runs there"),
        (ledger("cpu", 0.1), (0.95,), "fail", "what else runs there"),
    ],
)
def test_a_peak_is_of_the_whole_device(
    memory: MemoryLedger, seen: Sequence[float], wanted: str, remedy: str
) -> None:
    outcome = peak(memory, seen)
    assert outcome.verdict == wanted
    assert remedy in outcome.remedy
    assert outcome.n == len(seen) + 1


def readings(name: str, value: Callable[[float], float], count: int = 40) -> Readings:
    times = [index * 0.5 for index in range(count)]
    return Readings(series={name: (times, [value(t) for t in times])}, total_memory=8.0 * GIB)


def grown(found: Readings) -> dict[str, str]:
    return growing(trends_of(found), found.total_memory, P)


NOISE = random.Random(7)


@pytest.mark.parametrize(
    ("name", "value", "grows"),
    [
        ("daemon memory", lambda t: 200.0 * MIB, False),
        ("daemon memory", lambda t: 200.0 * MIB + t * 20 * MIB, True),
        ("daemon memory", lambda t: 200.0 * MIB + t * MIB, False),
        ("daemon memory", lambda t: 400.0 * MIB - t * 20 * MIB, False),
        ("daemon memory", lambda t: 200.0 * MIB + NOISE.uniform(0, 200) * MIB, False),
        ("daemon memory", lambda t: (200.0 if t < 4 else 500.0) * MIB, False),
        ("other memory", lambda t: 300.0 * MIB + t * 3 * MIB, False),
        ("other memory", lambda t: 300.0 * MIB + t * 100 * MIB, True),
        ("open files", lambda t: 20.0 + t, False),
    ],
)
def test_what_grows_is_a_trend_that_is_sure_and_large(
    name: str, value: Callable[[float], float], grows: bool
) -> None:
    assert bool(grown(readings(name, value))) == grows


def test_few_readings_are_no_trend() -> None:
    assert trends_of(readings("daemon memory", lambda t: t * GIB, count=6)) == {}
    assert trends_of(Readings()) == {}


def judged(found: Readings, left: dict[str, str] | None = None, again: bool = True) -> Outcome:
    data = run("soak", [answer("request", float(at)) for at in range(20)])
    found_growth = grown(found) if again else {}
    try:
        return judge_growth(Soaked(data, found, {}), trends_of(found), found_growth, left or {})
    except Finding as finding:
        return finding.outcome


def test_growth_or_files_left_open_fail_and_no_reading_is_no_pass() -> None:
    flat = readings("daemon memory", lambda t: 200.0 * MIB)
    rising = readings("daemon memory", lambda t: 200.0 * MIB + t * 20 * MIB)
    assert judged(flat).verdict == "pass"
    assert judged(rising).verdict == "fail"
    assert judged(rising, again=False).verdict == "pass"
    assert judged(flat, {"open files": "open files went from 20 to 90"}).verdict == "fail"
    assert judged(readings("open files", lambda t: 20.0)).verdict == "inconclusive"


def test_a_page_gives_the_readings_that_it_has() -> None:
    page = prometheus.parse(
        "# TYPE kvops_daemon_open_files gauge\nkvops_daemon_open_files 21\n"
        "# TYPE kvops_memory_bytes gauge\n"
        'kvops_memory_bytes{account="other"} 5\nkvops_memory_bytes{account="total"} 80\n'
    )
    assert levels(page) == {"open files": 21.0, "other memory": 5.0}


def test_a_watch_sees_a_node_from_the_first_look_to_the_last() -> None:
    from kvops.testing import serve
    from kvops.verify.api import Api
    from kvops.verify.context import Context
    from kvops.verify.facts import Facts
    from kvops.verify.watch import watched

    async def watch() -> Readings:
        target = node.target()
        context = Context(target=target, api=Api(target), node=None, facts=Facts(engine="kvops"))
        async with watched(context, every=0.01) as found:
            for _ in range(1000):
                if len(found.values("daemon memory")) >= 3:
                    break
                await asyncio.sleep(0.01)
        seen = len(found.values("daemon memory"))
        await context.api.aclose()
        assert len(found.values("daemon memory")) == seen
        return found

    with serve() as node:
        found = asyncio.run(watch())
    assert found.total_memory == 8 * GIB
    assert set(found.values("other memory")) == {320.0 * MIB}
    assert min(found.values("daemon memory")) > 10 * MIB
    assert found.values("resident memory") == ()

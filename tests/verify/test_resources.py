from __future__ import annotations

import asyncio
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest

from kvops.telemetry import prometheus
from kvops.telemetry.snapshot import MemoryLedger
from kvops.verify.check import Finding, Outcome
from kvops.verify.checks.resources import judge_growth, judge_peak
from kvops.verify.growing import GrowthParameters, Rise, rises, together, trends_of
from kvops.verify.processes import Children
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


RATE = 20.0
"""Requests a second of the soaks below."""


def readings(
    name: str, value: Callable[[float], float], count: int = 40, device: str = "cpu"
) -> Readings:
    times = [index * 0.5 for index in range(count)]
    return Readings(
        series={name: (times, [value(t) for t in times])},
        total_memory=64.0 * GIB,
        free_memory=48.0 * GIB,
        device=device,
    )


def soaked(found: Readings, rate: float = RATE) -> Soaked:
    sent = [answer("request", number / rate) for number in range(int(20 * rate))]
    return Soaked(run("soak", sent), found, {})


def rise(found: Readings, rate: float = RATE, parameters: GrowthParameters = P) -> Rise:
    (one,) = rises(soaked(found, rate), parameters).values()
    return one


def leaking(per_thousand: float, rate: float = RATE, name: str = "daemon memory") -> Readings:
    """MiB per 1,000 requests."""
    return readings(name, lambda t: 200 * MIB + t * rate * per_thousand * MIB / 1000)


NOISE = random.Random(7)


@pytest.mark.parametrize(
    ("value", "leak", "none"),
    [
        (lambda t: 200.0 * MIB, False, True),
        (lambda t: 400.0 * MIB - t * 20 * MIB, False, True),
        (lambda t: 200.0 * MIB + t * 0.2 * MIB, False, True),
        (lambda t: (200.0 if t < 4 else 500.0) * MIB, False, True),
        (lambda t: 200.0 * MIB + t * 1.5 * MIB, True, False),
        (lambda t: 200.0 * MIB + t * 8 * MIB, True, False),
        (lambda t: 200.0 * MIB + NOISE.uniform(0, 200) * MIB, False, False),
    ],
)
def test_a_leak_is_sure_when_the_lower_end_of_its_slope_is_over_the_bound(
    value: Callable[[float], float], leak: bool, none: bool
) -> None:
    one = rise(readings("daemon memory", value))
    assert (one.is_leak, one.is_none) == (leak, none), one


@pytest.mark.parametrize("rate", [4.0, 20.0, 200.0])
def test_a_leak_of_each_request_is_told_at_any_rate(rate: float) -> None:
    assert rise(leaking(60, rate), rate).is_leak
    assert rise(leaking(10, rate), rate).is_none


def test_a_leak_of_time_alone_is_told_by_when_the_memory_is_full() -> None:
    per_hour = 48.0 / P.hours * GIB
    fast = readings("daemon memory", lambda t: 200 * MIB + t * 1.1 * per_hour / 3600)
    assert rise(fast, rate=30.0).is_leak
    assert not rise(fast, rate=30.0, parameters=GrowthParameters(hours=1)).is_leak


def test_what_a_sound_node_keeps_of_long_answers_is_no_leak() -> None:
    kept = readings("daemon memory", lambda t: 200 * MIB + t * RATE * 1000 * 112)
    assert rise(kept).is_leak
    assert rise(kept, parameters=GrowthParameters(max_tokens=1000)).is_none


def test_the_smallest_leak_that_would_have_been_seen_would_have_been() -> None:
    for noise in (0.0, 0.5, 20.0):
        drawn = random.Random(3)
        shaken = [drawn.uniform(0, noise) for _ in range(40)]

        def with_leak(per_second: float, shaken: list[float] = shaken) -> Readings:
            return readings(
                "daemon memory",
                lambda t: 200 * MIB + shaken[int(t * 2)] * MIB + t * per_second,
            )

        still = rise(with_leak(0.0))
        least = still.seen_from - still.trend.slope
        assert rise(with_leak(1.01 * least)).is_leak
        assert not rise(with_leak(0.9 * still.allowed - still.trend.slope)).is_leak


def test_few_readings_are_no_trend() -> None:
    assert trends_of(readings("daemon memory", lambda t: t * GIB, count=6)) == {}
    assert trends_of(Readings()) == {}


def judged(*soaks: Readings, left: dict[str, str] | None = None) -> Outcome:
    found = [soaked(one) for one in soaks]
    try:
        return judge_growth(found[0], together([rises(one, P) for one in found]), left or {})
    except Finding as finding:
        return finding.outcome


FLAT = readings("daemon memory", lambda t: 200.0 * MIB)
OPEN = readings("daemon memory", lambda t: 200.0 * MIB + random.Random(t).uniform(0, 200) * MIB)


def test_a_leak_is_in_each_soak_and_says_what_it_is_to_an_operator() -> None:
    failed = judged(leaking(60), leaking(60))
    assert failed.verdict == "fail"
    assert re.fullmatch(
        r"daemon memory \+6\d\.\d MiB per 1,000 requests \(at least \+6\d\.\d MiB\), 4\.2 GiB an hour, full in 11h 22m",
        str(failed.observed),
    )
    assert judged(leaking(60), FLAT).verdict == "pass"
    assert judged(FLAT).verdict == "pass"


def test_what_is_not_sure_is_no_pass() -> None:
    for soaks in ((OPEN, OPEN), (leaking(60), OPEN)):
        found = judged(*soaks)
        assert found.verdict == "inconclusive"
        assert "are allowed" in str(found.observed)
        assert "least_seconds" in found.remedy
    assert judged(OPEN, FLAT).verdict == "pass"
    assert judged(readings("open files", lambda t: 20.0)).verdict == "inconclusive"


def test_a_pass_says_which_leak_would_have_been_seen() -> None:
    passed = judged(FLAT)
    assert "a leak of 28.7 MiB would have been seen" in str(passed.observed)
    assert passed.evidence["trends"]["daemon memory"]["seen_from"] > 0


def test_files_left_open_fail() -> None:
    assert judged(FLAT, left={"open files": "open files went from 20 to 90"}).verdict == "fail"


def test_what_a_whole_machine_uses_accuses_no_node() -> None:
    """Nor does it excuse one: what the engine's own processes use is looked at in its place."""
    shared = readings("other memory", lambda t: 300.0 * MIB + t * 400 * MIB)
    found = judged(shared, shared)
    assert (found.verdict, "other programs" in str(found.observed)) == ("inconclusive", True)
    assert "on the node's own machine" in found.remedy
    shared.series |= leaking(0, name="engine memory").series
    assert judged(shared).verdict == "pass"
    shared.series |= leaking(60, name="engine memory").series
    assert judged(shared, shared).verdict == "fail"


def test_what_grows_on_a_gpu_in_no_account_is_the_nodes() -> None:
    on_gpu = readings("other memory", lambda t: 300.0 * MIB + t * 400 * MIB, device="cuda:0 H200")
    assert judged(on_gpu, on_gpu).verdict == "fail"


def test_a_childs_own_memory_is_read_and_its_end_is_no_fault() -> None:
    count = 64 * MIB
    code = f"x = bytearray(b'x' * {count}); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        children = Children(os.getpid())
        assert child.stdout is not None
        child.stdout.readline()
        assert (children.own_bytes() or 0) >= count
        child.communicate(b"\n")
    assert children.own_bytes() is None or child.returncode == 0


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

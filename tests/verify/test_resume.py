"""A run is on disk after each check; what was interrupted goes on, on the same node with the same checks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvops.errors import UsageError
from kvops.telemetry.targets import Target
from kvops.verify import resume, runner, runs
from kvops.verify.check import Outcome, Parameters
from kvops.verify.checks import CHECKS
from kvops.verify.context import Context
from kvops.verify.estimates import Estimates, last_times, roughly
from kvops.verify.facts import Facts
from kvops.verify.profile import load_profile
from kvops.verify.result import Report
from kvops.verify.runner import Terms
from kvops.verify.selection import PlannedCheck, select
from tests.verify import made
from tests.verify.made import WAIVER, good, planned, report, row

PLAN = select(load_profile("smoke"), "smoke", CHECKS)


async def slow(context: Context, parameters: Parameters) -> Outcome:
    await asyncio.sleep(60)
    raise AssertionError("not reached")


async def bad(context: Context, parameters: Parameters) -> Outcome:
    return Outcome(verdict="fail", observed=1, expected=2, remedy="mend it")


def interrupted_at(name: str, *checks: PlannedCheck, terms: Terms) -> Report:
    """Cancelled as soon as the check `name` begins."""

    async def go() -> Report:
        reached = asyncio.Event()

        def progress(index: int, planned: PlannedCheck) -> None:
            if planned.check.id == name:
                reached.set()

        async with made.listed() as url:
            target = Target(name="n", url=url)
            run = runner.run(target, None, "p", checks, progress, terms=terms)
            task = asyncio.create_task(run)
            await asyncio.wait_for(reached.wait(), 10)
            task.cancel()
            return await task

    return asyncio.run(go())


def test_after_each_check_the_run_is_on_disk_as_a_crash_would_leave_it(kvops_home: Path) -> None:
    kept: list[Report] = []

    def keep(now: Report) -> None:
        runs.save(now)
        kept.append(runs.find("last"))

    made.run(
        planned("a", good), planned("b", bad), terms=Terms(run_id="20260101T000000-a", keep=keep)
    )
    assert [[c.id for c in one.checks] for one in kept] == [[], ["a"], ["a", "b"]]
    assert [one.not_run for one in kept] == [("a", "b"), ("b",), ()]
    assert {(one.verdict, one.exit_code) for one in kept} == {("interrupted", 130)}


def test_what_is_done_is_not_done_again_and_keeps_its_time() -> None:
    calls: list[str] = []

    def counted(name: str) -> PlannedCheck:
        async def body(context: Context, parameters: Parameters) -> Outcome:
            calls.append(name)
            return Outcome(verdict="pass", observed=name, expected=1)

        return planned(name, body)

    terms = Terms(run_id="20260101T000000-a", waivers=(WAIVER,))
    first = interrupted_at("b", counted("a"), planned("b", slow), counted("c"), terms=terms)
    assert (first.verdict, first.not_run, first.resumed_at) == ("interrupted", ("b", "c"), ())
    again = msgspec.structs.replace(first)
    whole = made.run(
        counted("a"),
        counted("b"),
        counted("c"),
        terms=Terms(run_id=first.run_id, earlier=again, waivers=(WAIVER,)),
    )
    assert calls == ["a", "b", "c"]
    assert whole.checks[0] == first.checks[0]
    assert [check.id for check in whole.checks] == ["a", "b", "c"]
    assert (whole.run_id, whole.started_at) == (first.run_id, first.started_at)
    assert len(whole.resumed_at) == 1
    assert (whole.verdict, whole.partial, whole.not_run) == ("pass", False, ())


def test_a_check_that_ended_the_first_part_ends_the_second() -> None:
    checks = (planned("a", bad, stop_on_fail=True), planned("b", good))
    first = made.run(*checks)
    part = msgspec.structs.replace(first, checks=first.checks[:1], verdict="interrupted")
    assert [c.verdict for c in made.run(*checks, terms=Terms(earlier=part)).checks] == [
        "fail",
        "inconclusive",
    ]


def test_a_waiver_of_now_covers_what_was_found_before() -> None:
    first = made.run(planned("a", bad))
    waiver = msgspec.structs.replace(WAIVER, id="a")
    again = made.run(
        planned("a", bad), planned("b", good), terms=Terms(earlier=first, waivers=(waiver,))
    )
    assert (again.checks[0].waived, again.exit_code) == (waiver, 0)


def unfinished() -> Report:
    first = PLAN.everything[1]
    return report(
        row("pass", "resp.short", parameters=first.parameters.model_dump(mode="json")),
        not_run=tuple(p.check.id for p in PLAN.everything if p is not first),
        verdict="interrupted",
        profile_source="smoke",
        profile_hash=PLAN.fingerprint,
    )


@pytest.mark.parametrize(
    ("over", "says"),
    [
        ({"profile_hash": "0" * 12}, f"000000000000 then, {PLAN.fingerprint} now"),
        ({"profile_hash": "0" * 12}, "thresholds of checks that were not made yet"),
        ({"profile_hash": "0" * 12, "not_run": ("z.old",)}, "gone: z.old"),
        ({"profile_hash": "0" * 12, "not_run": ()}, "new: auth.default_deny, disconnect.frees"),
        ({"profile_hash": "0" * 12, "checks": (row(),)}, "other thresholds: resp.short"),
        ({"profile": "golive"}, "profile golive then, smoke now"),
        ({}, ""),
    ],
)
def test_another_profile_or_other_thresholds_are_named(over: dict[str, Any], says: str) -> None:
    earlier = msgspec.structs.replace(unfinished(), **over)
    _refused(lambda: resume.require_same(earlier, PLAN, Target(name="n", url="http://h:1")), says)


def test_another_node_is_named_and_one_on_another_port_is_the_same() -> None:
    other = Target(name="m", url="http://127.0.0.1:2")
    _refused(
        lambda: resume.require_same(unfinished(), PLAN, other),
        "node http://127.0.0.1:1 then, http://127.0.0.1:2 now",
    )
    resume.require_same(unfinished(), PLAN, Target(name="n", url="http://127.0.0.1:2"))


def test_a_node_that_was_configured_anew_is_named() -> None:
    earlier = unfinished()
    target = msgspec.structs.replace(earlier.target, config_hash="old")
    earlier = msgspec.structs.replace(earlier, target=target)
    agrees = resume.agreement(earlier)
    agrees(Facts(engine="kvops", model="words", config_hash="old"))
    agrees(Facts(engine="kvops", model="words"))
    _refused(
        lambda: agrees(Facts(engine="kvops", model="words", config_hash="new")),
        "configuration old then, new now",
    )


def _refused(call: Callable[[], None], says: str) -> None:
    if not says:
        call()
        return
    with pytest.raises(UsageError) as caught:
        call()
    assert says in caught.value.message
    assert caught.value.hint


def test_only_an_interrupted_run_that_nobody_runs_goes_on(kvops_home: Path) -> None:
    _refused(lambda: _unfinished("last"), "no interrupted run is kept")
    runs.save(report(row(), run_id="20260101T000000-aaaaaa"))
    _refused(lambda: _unfinished("20260101"), "not interrupted, its verdict is pass")
    _refused(lambda: _unfinished("last"), "no interrupted run is kept")
    runs.save(msgspec.structs.replace(unfinished(), run_id="20260102T000000-bbbbbb"))
    assert resume.unfinished("last").run_id == "20260102T000000-bbbbbb"
    with runs.held("20260102T000000-bbbbbb"):
        _refused(lambda: _unfinished("last"), "still goes on in another process")
        _refused(lambda: _held("20260102T000000-bbbbbb"), "still goes on")
    assert resume.unfinished("20260102").run_id == "20260102T000000-bbbbbb"


def _unfinished(text: str) -> None:
    resume.unfinished(text)


def _held(run_id: str) -> None:
    with runs.held(run_id):
        pass


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("2026", "names 2 runs"),
        ("20260103", "no run '20260103'"),
        ("20260101T000000-aaaaab", "did you mean 20260101T000000-aaaaaa?"),
        ("", "no run ''"),
    ],
)
def test_a_run_that_is_not_one_is_named(kvops_home: Path, text: str, says: str) -> None:
    for run_id in ("20260101T000000-aaaaaa", "20260102T000000-bbbbbb"):
        runs.save(report(row(), run_id=run_id))
    with pytest.raises(UsageError) as caught:
        runs.find(text)
    assert says in str(caught.value)


def test_a_kept_run_that_is_damaged_is_passed_over_in_a_list_and_named_alone(
    kvops_home: Path,
) -> None:
    runs.save(report(row(), run_id="20260101T000000-aaaaaa"))
    damaged = runs.save(report(row(), run_id="20260102T000000-bbbbbb"))
    damaged.write_bytes(damaged.read_bytes()[:100])
    assert [one.run_id for one in runs.reports()] == ["20260101T000000-aaaaaa"]
    with pytest.raises(UsageError, match="no result of kvops verify"):
        runs.find("last")


def test_the_command_to_go_on_can_be_typed() -> None:
    options = [("--node", "http://h:1"), ("--token-file", "/a b/token")]
    assert resume.command("r1", options) == (
        "kvops verify --resume r1 --node http://h:1 --token-file '/a b/token'"
    )


def test_time_left_comes_from_the_last_run_here_else_from_what_is_typical(kvops_home: Path) -> None:
    checks = [planned("a", good, typical=10.0), planned("b", good, typical=20.0)]
    kept = report(row("pass", "a", took_seconds=3.0), row("skip", "b", n=0))
    runs.save(kept)
    last = last_times("n", "http://elsewhere")
    assert last == {"a": 3.0}
    assert last_times("other", "http://elsewhere") == {}
    estimates = Estimates(checks, last)
    assert estimates.left() == 23.0
    assert estimates.left(running_for=2.0) == 21.0
    assert estimates.left(running_for=99.0) == 20.0
    estimates.ended(row("pass", "a", took_seconds=30.0))
    assert estimates.left() == 20.0
    estimates.ended(row("pass", "b"))
    assert estimates.left() == 0.0


def test_a_node_slower_than_typical_makes_the_rest_longer() -> None:
    checks = [planned(name, good, typical=10.0) for name in ("a", "b")]
    estimates = Estimates(checks, {})
    assert estimates.left() == 20.0
    estimates.ended(row("pass", "a", took_seconds=50.0))
    assert estimates.left() == 30.0


@pytest.mark.parametrize(
    ("seconds", "says"),
    [(2, "a few seconds left"), (43, "about 45 s left"), (100, "about 1m 45s left"), (1234, "about 21 min left")],
)  # fmt: skip
def test_time_left_is_said_as_exactly_as_it_is_known(seconds: float, says: str) -> None:
    assert roughly(seconds) == says

"""A waiver names a check that is run, a reason and who answers for it; it covers no check that broke."""

from __future__ import annotations

import asyncio
import getpass
import os

import pytest

from kvops.errors import UsageError
from kvops.telemetry.targets import Target
from kvops.verify import runner, words
from kvops.verify.check import Outcome, Parameters
from kvops.verify.context import Context
from kvops.verify.result import Report
from kvops.verify.runner import Terms
from kvops.verify.selection import PlannedCheck
from kvops.verify.verdict import Verdict
from kvops.verify.waivers import Waiver, waivers
from tests.verify import made
from tests.verify.made import good, planned

KNOWN = ("resp.short", "resp.stream")


def ending(verdict: Verdict) -> PlannedCheck:
    async def body(context: Context, parameters: Parameters) -> Outcome:
        return Outcome(verdict=verdict, observed=1, expected=1)

    return planned(f"a.{verdict}", body)


async def broken(context: Context, parameters: Parameters) -> Outcome:
    raise ZeroDivisionError("a defect of the check")


def given(*ids: str) -> tuple[Waiver, ...]:
    return tuple(Waiver(id=name, reason="known", by="me", at="2026-01-01") for name in ids)


def run(*checks: PlannedCheck, waived: tuple[Waiver, ...]) -> Report:
    return made.run(*checks, terms=Terms(waivers=waived))


def test_who_and_when_and_why_are_recorded() -> None:
    (one,) = waivers(["resp.short"], ["  mended\n in 1.3 "], KNOWN, compares=False)
    assert (one.id, one.reason) == ("resp.short", "mended in 1.3")
    assert one.by == f"{getpass.getuser()} (uid {os.getuid()})"
    assert one.at.endswith("+00:00")


@pytest.mark.parametrize(
    ("ids", "reasons", "says"),
    [
        (["resp.short"], [], "each needs the other"),
        ([], ["why"], "each needs the other"),
        (["resp.short", "resp.stream"], ["why"], "2 --waive and 1 --reason"),
        (["resp.shrt"], ["why"], "resp.shrt"),
        (["resp.short"], ["  "], "0 characters"),
        (["resp.short"], ["x" * 501], "501 characters"),
        (["resp.short", "resp.short"], ["a", "b"], "twice"),
        (["baseline.ttft"], ["a"], "nothing is compared"),
        (["resp."], ["a"], "resp."),
    ],
)
def test_half_a_waiver_is_refused(ids: list[str], reasons: list[str], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        waivers(ids, reasons, KNOWN, compares=False)
    assert says in caught.value.message
    assert caught.value.hint
    assert caught.value.exit_code == 2


def test_a_row_of_a_baseline_can_be_waived_before_it_is_known() -> None:
    (one,) = waivers(["baseline.ttft"], ["a slower disk"], KNOWN, compares=True)
    assert one.id == "baseline.ttft"


def test_a_finding_that_is_waived_stays_a_finding_and_lets_the_run_through() -> None:
    checks = (planned("a.good", good), ending("fail"), ending("inconclusive"))
    report = run(*checks, waived=given("a.fail", "a.inconclusive", "a.good"))
    assert [check.verdict for check in report.checks] == ["pass", "fail", "inconclusive"]
    assert (report.verdict, report.exit_code) == ("warn", 0)
    assert words.conclusion(report) == "passed with 2 waivers; 1 of 3 required checks passed"
    assert [check.id for check in report.waived] == ["a.fail", "a.inconclusive"]
    assert words.left_out(report) == ["waived, but there was nothing to waive: a.good"]


def test_a_second_finding_still_fails_the_run() -> None:
    report = run(ending("fail"), ending("warn"), planned("b.bad", broken), waived=given("a.fail"))
    assert (report.verdict, report.exit_code) == ("inconclusive", 3)


def test_what_broke_is_not_waived() -> None:
    report = run(planned("a.good", good), planned("b.bad", broken), waived=given("b.bad"))
    assert report.waived == ()
    assert (report.verdict, report.exit_code) == ("inconclusive", 3)


def test_a_node_that_is_gone_is_not_waived() -> None:
    target, terms = Target(name="t", url="http://127.0.0.1:9"), Terms(waivers=given("a.good"))
    report = asyncio.run(runner.run(target, None, "p", [planned("a.good", good)], terms=terms))
    assert (report.verdict, report.exit_code) == ("unreachable", 4)


def test_a_waived_check_does_not_end_the_run_early() -> None:
    async def bad(context: Context, parameters: Parameters) -> Outcome:
        return Outcome(verdict="fail", observed=1, expected=2)

    checks = (planned("a.bad", bad, stop_on_fail=True), planned("b.good", good))
    assert run(*checks, waived=()).checks[1].verdict == "inconclusive"
    assert run(*checks, waived=given("a.bad")).checks[1].verdict == "pass"

"""What is compared with the beginning of a run is compared with that of its first part, however often it stopped."""

from __future__ import annotations

from pathlib import Path

import httpx
import msgspec
import pytest

from kvops.errors import UsageError
from kvops.testing import serve
from kvops.verify import beginning, resume, runs
from kvops.verify.api import Refusal
from kvops.verify.beginning import Beginning
from kvops.verify.check import Outcome, Parameters
from kvops.verify.checks import CHECKS
from kvops.verify.context import Context
from kvops.verify.facts import Facts
from kvops.verify.order import Asked, prepare
from kvops.verify.profile import load_profile
from kvops.verify.result import Compares, Report
from kvops.verify.runner import Terms
from kvops.verify.selection import select
from tests.verify import made
from tests.verify.gate import gate, one_by_one, the_check
from tests.verify.made import good, planned, report, row

BUSY = Refusal(path="/v1/completions", status=429, code="queue_full", retry_after=None)
FIRST = Beginning(at=1000.0, uptime=50.0, engine_restarts=2)


def now(uptime: float | None = 650.0, restarts: int | None = 2) -> Beginning:
    return Beginning(at=1600.0, uptime=uptime, engine_restarts=restarts)


@pytest.mark.parametrize(
    ("part", "after", "faults", "remarks"),
    [
        (FIRST, now(), (), ()),
        (FIRST, now(restarts=3), ("1 engine restart",), ()),
        (FIRST, now(restarts=4), ("2 engine restarts",), ()),
        (FIRST, now(uptime=300.0, restarts=0), ("the node itself was started anew",), ()),
        (FIRST, now(uptime=300.0, restarts=1), ("the node itself was started anew", "1 engine restart"), ()),
        (FIRST, now(uptime=647.0), (), ()),
        (FIRST, now(uptime=None, restarts=None), (), ()),
        (Beginning(at=1000.0), now(), (), ()),
    ],
)  # fmt: skip
def test_a_life_that_ended_while_the_gate_ran_is_a_fault(
    part: Beginning, after: Beginning, faults: tuple[str, ...], remarks: tuple[str, ...]
) -> None:
    found = beginning.since(part, part, after, elapsed=600.0)
    assert (found.faults, found.remarks) == (faults, remarks)


def test_between_two_parts_an_operator_may_start_a_node_anew_and_an_engine_may_not_die() -> None:
    went_on = Beginning(at=1500.0, uptime=550.0, engine_restarts=3)
    found = beginning.since(FIRST, went_on, now(restarts=3), elapsed=100.0)
    assert found.faults == ("1 engine restart",)
    anew = Beginning(at=1500.0, uptime=20.0, engine_restarts=0)
    found = beginning.since(FIRST, anew, now(uptime=120.0, restarts=0), elapsed=100.0)
    assert (found.faults, len(found.remarks)) == ((), 1)
    found = beginning.since(FIRST, anew, now(uptime=120.0, restarts=1), elapsed=100.0)
    assert (found.faults, len(found.remarks)) == (("1 engine restart",), 1)


def seen_by(earlier: Report | None) -> tuple[Context, Report]:
    """What a check of a run is given, and the run."""
    given: list[Context] = []

    async def look(context: Context, parameters: Parameters) -> Outcome:
        given.append(context)
        return Outcome(verdict="pass", observed=1, expected=1)

    whole = made.run(planned("a", good), planned("b", look), terms=Terms(earlier=earlier))
    return given[0], whole


def test_a_run_that_goes_on_began_with_its_first_part() -> None:
    context, whole = seen_by(None)
    assert whole.beginning == context.first == context.part
    earlier = report(
        row("pass", "a"),
        verdict="interrupted",
        started_at="2026-01-02T03:04:05.000+00:00",
        beginning=FIRST,
        refusals=(BUSY,),
        compares=Compares(baseline="last"),
    )
    context, whole = seen_by(earlier)
    assert context.began == 1767323045.0
    assert (context.first, whole.beginning) == (FIRST, FIRST)
    assert context.part not in (None, FIRST)
    assert context.api.refusals == [BUSY]
    assert whole.refusals == (BUSY,)


def test_a_run_of_an_older_version_did_not_note_its_beginning() -> None:
    context, _ = seen_by(report(row("pass", "a"), verdict="interrupted"))
    assert context.first is None
    assert context.began == 1767323045.0


def test_a_run_that_does_not_say_when_it_began_cannot_go_on() -> None:
    with pytest.raises(UsageError, match="does not say when it began"):
        resume.began(report(row(), started_at="yesterday"))


def test_what_a_node_does_not_say_again_stays_known() -> None:
    earlier = report(row())
    earlier = msgspec.structs.replace(
        earlier, target=msgspec.structs.replace(earlier.target, config_hash="old", gpus=("H200",))
    )
    known = resume.known(earlier, Facts(model="words"))
    assert (known.engine, known.config_hash, known.gpus) == ("kvops", "old", ("H200",))
    agrees = resume.agreement(earlier)
    with pytest.raises(UsageError, match="configuration old then, new now"):
        agrees(resume.known(earlier, Facts(config_hash="new")))


def test_an_engine_that_died_in_the_first_part_fails_the_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serve("dies_of_over_length") as node:
        monkeypatch.setenv("KVOPS_NODE_LOG", str(node.log_file))
        first = gate(node, one_by_one("resp.short"))
        assert (first.beginning is not None, first.exit_code) == (True, 0)
        body = {"model": "words", "prompt": [5] * 100_000, "max_tokens": 1}
        httpx.post(f"{node.url}/v1/completions", json=body, timeout=30)
        earlier = msgspec.structs.replace(first, verdict="interrupted", exit_code=130)
        profile = one_by_one("resp.short", "logs.clean")
        whole = gate(node, profile, terms=Terms(earlier=earlier))
        result = the_check(whole, "logs.clean")
        assert (result.verdict, whole.exit_code) == ("fail", 1)
        assert "1 engine restart" in str(result.observed)
        monkeypatch.delenv("KVOPS_NODE_LOG")
        unread = the_check(gate(node, profile, terms=Terms(earlier=earlier)), "logs.clean")
        assert (unread.verdict, unread.observed) == (
            "fail",
            "since the gate began: 1 engine restart",
        )
        alone = the_check(gate(node, one_by_one("logs.clean")), "logs.clean")
        assert alone.verdict == "skip"


def kept(**over: object) -> None:
    plan = select(load_profile("smoke"), "smoke", CHECKS)
    first = plan.everything[1]
    runs.save(
        report(
            row("pass", first.check.id, parameters=first.parameters.model_dump(mode="json")),
            not_run=tuple(p.check.id for p in plan.everything if p is not first),
            profile_source="smoke",
            profile_hash=plan.fingerprint,
            **{"verdict": "interrupted", "exit_code": 130} | over,
        )
    )


def test_a_run_that_goes_on_is_compared_as_it_was_asked_to_be(kvops_home: Path) -> None:
    kept(compares=Compares(baseline="last", required=True))
    asked = prepare(Asked(resume="last")).asked
    assert (asked.baseline, asked.require_baseline, asked.force_baseline) == ("last", True, False)
    kept()
    assert prepare(Asked(resume="last")).asked.baseline is None


def test_a_run_whose_node_was_away_goes_on_and_one_that_had_none_does_not(kvops_home: Path) -> None:
    kept(verdict="unreachable", exit_code=4)
    assert resume.unfinished("last").verdict == "unreachable"
    runs.save(report(verdict="unreachable", exit_code=4))
    with pytest.raises(UsageError, match="no interrupted run is kept"):
        resume.unfinished("last")

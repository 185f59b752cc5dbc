"""Each check passes on a sound node and fails on one that is broken in the way it is there to find."""

from __future__ import annotations

import asyncio

import pytest

from kvops.errors import NodeUnauthorized
from kvops.telemetry.clients.kvops import KvopsClient
from kvops.telemetry.targets import Target
from kvops.testing import KEY, TOKEN, FaultyNode, serve
from kvops.verify import runner
from kvops.verify.checks import CHECKS
from kvops.verify.profile import Profile, load_profile, plan
from kvops.verify.result import CheckResult, Report

HASTY = {
    "reach.health": {"answer_within": 1},
    "metrics.contract": {"settle_within": 0.3},
    "memory.adds_up": {"idle_within": 0.3},
    "disconnect.frees": {"within": 0.5},
}


def profile(hasty: bool) -> Profile:
    """A broken node is given up soon; a sound one gets all the time that a busy machine may need."""
    smoke = load_profile("smoke")
    entries = [
        e.model_copy(update={"parameters": HASTY.get(e.id, e.parameters)} if hasty else {})
        for e in smoke.checks
    ]
    return smoke.model_copy(update={"checks": entries})


def gate(node: FaultyNode, *only: str, api_key: str | None = None, control: bool = True) -> Report:
    async def run() -> Report:
        url = node.control_url if control else None
        target = Target(name="t", url=node.url, control_url=url, token=TOKEN, api_key=api_key)
        client = KvopsClient(target) if control else None
        try:
            return await runner.run(
                target, client, "smoke", plan(profile(bool(node.defects)), CHECKS, only)
            )
        finally:
            if client is not None:
                await client.aclose()

    return asyncio.run(run())


def the_check(report: Report, check_id: str) -> CheckResult:
    return next(result for result in report.checks if result.id == check_id)


def test_a_sound_node_passes_every_check() -> None:
    with serve() as node:
        report = gate(node)
    assert {r.id: (r.verdict, r.observed) for r in report.checks if r.verdict != "pass"} == {}
    assert [r.id for r in report.checks] == [check.id for check in CHECKS]
    assert (report.verdict, report.exit_code, report.not_run) == ("pass", 0, ())
    assert report.target.model == "words"
    assert report.target.engine == "kvops"
    assert report.target.max_model_len == 512


@pytest.mark.parametrize(
    ("defect", "check_id", "says"),
    [
        ("hangs", "reach.health", "no answer"),
        ("not_ready", "reach.health", "503"),
        ("wrong_usage", "resp.short", "total"),
        ("empty", "resp.short", "empty text"),
        ("odd_finish", "resp.short", "gave_up"),
        ("no_done", "resp.stream", "no [DONE]"),
        ("no_usage_chunk", "resp.stream", "no usage chunk"),
        ("stream_differs", "resp.stream", "differs"),
        ("drops_turns", "resp.multi_turn", "prompt tokens in turn two"),
        ("truncates_silently", "resp.over_length", "without a mark"),
        ("accepts_over_length", "resp.over_length", "without a mark"),
        ("no_numbers", "resp.over_length", "limit None"),
        ("engine_dies_over_length", "resp.over_length", "restarts"),
        ("crashes_on_malformed", "resp.errors", "malformed JSON: status 500"),
        ("any_model", "resp.errors", "unknown model: status 200"),
        ("any_field", "resp.errors", "unknown field: status 200"),
        ("no_metrics", "metrics.contract", "404"),
        ("missing_family", "metrics.contract", "kvops_kv_blocks is missing"),
        ("wrong_type", "metrics.contract", "kvops_preemptions_total"),
        ("duplicate_series", "metrics.contract", "kvops_engine_up is stated twice"),
        ("frozen_counters", "metrics.contract", "kvops_requests_total grew by 0"),
        ("ledger_off", "memory.adds_up", "accounts sum to 1 001 B"),
        ("lost_block", "memory.adds_up", "is 63 blocks"),
        ("leaks_blocks", "memory.adds_up", "2 blocks are held though nothing runs"),
        ("broken_invariant", "memory.adds_up", "1 invariant violations"),
        ("ignores_disconnect", "disconnect.frees", "stream: running"),
        ("open_control", "auth.default_deny", "without a token: 200"),
    ],
)
def test_a_defect_fails_the_check_that_looks_for_it(defect: str, check_id: str, says: str) -> None:
    with serve(defect) as node:
        report = gate(node, check_id)
    (result,) = report.checks
    assert (result.verdict, report.exit_code) == ("fail", 1), result
    assert says in str(result.observed)
    assert result.remedy


def test_a_hanging_node_is_not_asked_for_the_rest() -> None:
    with serve("hangs") as node:
        report = gate(node)
    assert report.checks[0].verdict == "fail"
    assert {r.verdict for r in report.checks[1:]} == {"inconclusive"}
    assert {r.n for r in report.checks[1:]} == {0}
    assert report.exit_code == 1


def test_a_missing_limit_is_a_remark_and_leaves_the_limit_checks_out() -> None:
    with serve("no_limit") as node:
        report = gate(node, "reach.health", "resp.near_limit", "resp.over_length")
    assert [r.verdict for r in report.checks] == ["warn", "skip", "skip"]
    assert (report.verdict, report.exit_code) == ("warn", 0)


def test_no_reuse_of_turn_one_is_a_remark() -> None:
    with serve("no_reuse") as node:
        report = gate(node, "resp.multi_turn")
    assert the_check(report, "resp.multi_turn").verdict == "warn"


def test_without_a_control_plane_what_cannot_be_seen_is_skipped_and_the_rest_is_run() -> None:
    with serve() as node:
        report = gate(node, control=False)
        alone = gate(node, "memory.adds_up", control=False)
    verdicts = {r.id: r.verdict for r in report.checks}
    assert verdicts.pop("memory.adds_up") == "skip"
    assert verdicts.pop("auth.default_deny") == "skip"
    assert set(verdicts.values()) == {"pass"}, "running and blocks are also in /metrics"
    assert alone.exit_code == 3, "a run in which everything is skipped has shown nothing"


def test_a_key_is_asked_for_everywhere() -> None:
    with serve(keys=True) as node:
        assert gate(node, api_key=KEY).exit_code == 0
        with pytest.raises(NodeUnauthorized):
            gate(node)


def test_a_hole_in_the_key_check_is_found() -> None:
    with serve("key_hole", keys=True) as node:
        report = gate(node, "auth.default_deny", api_key=KEY)
    assert report.checks[0].verdict == "fail"
    assert "/invocations" in str(report.checks[0].observed)


def test_no_text_of_prompts_or_answers_is_in_the_report() -> None:
    from kvops.verify import result
    from kvops.verify.checks.responses import PROMPT, SECRET

    with serve() as node:
        data = result.encode(gate(node)).decode()
    for text in (PROMPT, SECRET, "word1", "Name a colour"):
        assert text not in data

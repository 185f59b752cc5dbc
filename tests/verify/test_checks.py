"""What the checks make of a sound node, and of one that shows less. What they make of a broken one: test_matrix."""

from __future__ import annotations

import httpx
import pytest

from kvops.errors import NodeUnauthorized
from kvops.testing import LIMIT, MODEL, serve
from kvops.verify import result
from kvops.verify.checks.responses import PROMPT, SECRET
from kvops.verify.result import Report
from tests.verify.gate import gate, one_by_one, smoke, the_check


def test_a_sound_node_passes_every_check_of_smoke() -> None:
    with serve() as node:
        report = gate(node, smoke())
    assert _amiss(report) == {}
    assert [r.id for r in report.checks] == [entry.id for entry in smoke().checks]
    assert (report.verdict, report.exit_code, report.not_run) == ("pass", 0, ())
    assert report.target.model == MODEL
    assert report.target.engine == "kvops"
    assert report.target.max_model_len == LIMIT


def _amiss(report: Report) -> dict[str, tuple[str, object]]:
    return {r.id: (r.verdict, r.observed) for r in report.checks if r.verdict != "pass"}


def test_a_hanging_node_is_not_asked_for_the_rest() -> None:
    profile = smoke()
    hasty = one_by_one("reach.health").checks[0].model_copy(update={"stop_on_fail": True})
    with serve("hangs") as node:
        report = gate(node, profile.model_copy(update={"checks": [hasty, *profile.checks[1:]]}))
    assert report.checks[0].verdict == "fail"
    assert {r.verdict for r in report.checks[1:]} == {"inconclusive"}
    assert {r.n for r in report.checks[1:]} == {0}
    assert report.exit_code == 1


def test_a_missing_limit_is_a_remark_and_leaves_the_limit_checks_out() -> None:
    with serve("no_limit") as node:
        report = gate(node, one_by_one("reach.health", "resp.near_limit", "resp.over_length"))
    assert [r.verdict for r in report.checks] == ["warn", "skip", "skip"]
    assert (report.verdict, report.exit_code) == ("warn", 0)


def test_no_reuse_of_turn_one_is_a_remark() -> None:
    with serve("no_reuse") as node:
        report = gate(node, one_by_one("resp.multi_turn"))
    assert the_check(report, "resp.multi_turn").verdict == "warn"


def test_without_a_control_plane_what_cannot_be_seen_is_skipped_and_the_rest_is_run() -> None:
    with serve() as node:
        report = gate(node, smoke(), control=False)
        alone = gate(node, one_by_one("memory.adds_up"), control=False)
    verdicts = {r.id: r.verdict for r in report.checks}
    assert verdicts.pop("memory.adds_up") == "skip"
    assert verdicts.pop("auth.default_deny") == "skip"
    assert set(verdicts.values()) == {"pass"}, "running and blocks are also in /metrics"
    assert alone.exit_code == 3, "a run in which everything is skipped has shown nothing"


def test_a_key_is_asked_for_everywhere() -> None:
    with serve(keys=True) as node:
        assert _amiss(gate(node, smoke())) == {}
        with pytest.raises(NodeUnauthorized):
            gate(node, smoke(), key=False)


def test_no_text_of_prompts_or_answers_is_in_the_report() -> None:
    with serve() as node:
        data = result.encode(gate(node, smoke())).decode()
    for text in (PROMPT, SECRET, "gardener", "Name a colour"):
        assert text not in data


TALKERS = ("resp.short", "resp.stream", "resp.near_limit", "resp.multi_turn")


@pytest.mark.parametrize(
    ("defect", "checks", "remedy"),
    [
        ("wrong_usage", TALKERS, "total_tokens"),
        ("no_done", ("resp.stream",), "hang"),
        ("no_usage_chunk", ("resp.stream",), "turn usage on"),
        ("odd_finish", ("resp.short", "resp.stream"), "a whole answer from a cut one"),
        ("overstated_limit", ("resp.near_limit",), "longer max_model_len than it takes"),
        ("stream_differs", ("resp.stream",), "another answer"),
        ("server_error_for_bad_json", ("resp.errors",), "the node's own log"),
    ],
)
def test_what_to_do_is_about_the_fault_that_was_found(
    defect: str, checks: tuple[str, ...], remedy: str
) -> None:
    with serve(defect) as node:
        report = gate(node, one_by_one(*checks))
    for check in report.checks:
        assert (check.verdict, remedy in check.remedy) == ("fail", True), (check.id, check.remedy)
        assert "kvops node logs" not in check.remedy, "it is no node of this machine"
        assert remedy != "total_tokens" or "the node's own log" not in check.remedy


@pytest.mark.parametrize("keys", [False, True])
def test_the_node_of_these_tests_is_ready_once_it_is_served(keys: bool) -> None:
    with serve(keys=keys) as node:
        state = httpx.get(f"{node.url}/readyz", trust_env=False).json()
    assert state == {"status": "ready", "reason": ""}

"""The gate against another engine, seen from outside alone: what it does not show is skipped with the reason."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kvops.telemetry.targets import Target
from kvops.verify import runner
from kvops.verify.checks import CHECKS
from kvops.verify.profile import Entry, Profile, load_profile
from kvops.verify.result import CheckResult
from kvops.verify.runner import Terms
from kvops.verify.selection import plan
from tests.verify.foreign import KEY, QUICK, Foreign, foreign

LOADS = ("load.", "kv.", "memory.evictions", "resources.", "recall.", "perf.", "stability.")
"""Checks that send much or measure: on an engine that is quick, with parameters for one."""
PLANNED = {"requests": 90, "max_users": 4, "prompt_tokens": 16, "max_tokens": 4}
SOAK = {"seconds": 8, "least_seconds": 5, "requests": 100, "prompt_tokens": 16, "max_tokens": 4}
SHORT: dict[str, dict[str, Any]] = {
    "load.concurrency": PLANNED,
    "load.ledger": PLANNED,
    "kv.empty_after": PLANNED,
    "memory.evictions": PLANNED,
    "resources.memory_peak": PLANNED,
    "load.soak": SOAK,
    "resources.growth": SOAK,
    "load.recovers": {"users": 24, "baseline": 1, "burst": 1, "prompt_tokens": 16, "max_tokens": 8},
    "perf.ttft_by_length": {"longest": 256},
    "perf.rate_by_length": {"longest": 256},
}
UNSEEN = {
    "metrics.contract", "memory.adds_up", "auth.control", "claims.queue_bound", "claims.deadline",
    "claims.tenant_quota", "claims.prefix_isolation", "alerts.drill", "claims.retry_after", "logs.no_prompts",
    "logs.clean", "resources.memory_peak", "resources.growth",
}  # fmt: skip
UNSHOWN = {
    "disconnect.frees", "perf.ttft_truth", "load.ledger", "kv.empty_after", "memory.evictions", "recall.under_load",
}  # fmt: skip
"""Of an engine that has no /metrics page."""
UNGUARDED = {"reach.gateway", "auth.default_deny", "auth.routes"}
LENIENT = {"resp.malformed", "stability.injection"}
"""An engine may be lenient, and the operator is told."""


def ask(
    node: Foreign, profile: Profile, only: tuple[str, ...] = (), folder: Path | None = None
) -> dict[str, CheckResult]:
    target = Target(name="other", url=node.url, api_key=KEY if node.keyed else None)
    checks = plan(profile, CHECKS, only)
    report = asyncio.run(runner.run(target, None, "t", checks, terms=Terms(folder=folder)))
    return {result.id: result for result in report.checks}


def just(check: str, **parameters: Any) -> Profile:
    return Profile(
        schema_version=1, name="one", checks=[Entry(id=check, timeout=60, parameters=parameters)]
    )


def golive(*, loads: bool) -> tuple[Profile, tuple[str, ...]]:
    """Half of golive, hastily, and the names of its checks: between them the two halves leave none out."""
    profile = load_profile("golive")
    checks = [
        entry.model_copy(update={"parameters": entry.parameters | SHORT.get(entry.id, {})})
        for entry in profile.checks
    ]
    ids = tuple(entry.id for entry in checks if entry.id.startswith(LOADS) is loads)
    return profile.model_copy(update={"checks": checks}), ids


def test_what_cannot_be_seen_is_skipped_with_its_reason() -> None:
    profile, ids = golive(loads=False)
    with foreign() as node:
        checks = ask(node, profile, ids)
    skipped = {i: c for i, c in checks.items() if c.verdict == "skip"}
    assert set(skipped) == (UNSEEN | UNSHOWN | UNGUARDED) & set(ids)
    assert all(c.observed for c in skipped.values())
    assert others(checks) == {}


def test_a_sound_engine_that_is_not_ours_carries_its_load(tmp_path: Path) -> None:
    profile, ids = golive(loads=True)
    with foreign(token_seconds=QUICK, shows=True) as node:
        checks = ask(node, profile, (*ids, "disconnect.frees"), tmp_path)
    assert {i for i, c in checks.items() if c.verdict == "skip"} == UNSEEN & set(ids)
    assert others(checks) == {}


def test_a_page_that_is_not_there_is_no_failure() -> None:
    with foreign(token_seconds=QUICK) as node:
        checks = ask(
            node,
            load_profile("golive"),
            tuple(UNSHOWN - {"load.ledger", "kv.empty_after", "memory.evictions"}),
        )
    assert {c.verdict for c in checks.values()} == {"skip"}, checks


def others(checks: dict[str, CheckResult]) -> dict[str, tuple[str, object]]:
    """Those that neither pass nor are skipped nor are what is wanted of a lenient engine."""
    wanted = {i: "warn" if i in LENIENT else "pass" for i in checks}
    return {
        i: (c.verdict, c.observed)
        for i, c in checks.items()
        if c.verdict not in ("skip", wanted[i])
    }


@pytest.mark.long
@pytest.mark.parametrize(
    ("traits", "verdict", "says"),
    [
        ({"lists_limit": False}, "warn", "no length tried"),
        ({"breaks_at": "no_such_field"}, "fail", "unknown field: wrong_status"),
        ({"changed_by": "top_p"}, "fail", "canary after top_p over 1: wrong_answer"),
        ({"full_by": "top_p"}, "inconclusive", "refused by a busy node"),
    ],
)
def test_harm_by_an_injection_fails_any_engine(
    traits: dict[str, Any], verdict: str, says: str, tmp_path: Path
) -> None:
    with foreign(token_seconds=QUICK, **traits) as node:
        result = ask(node, just("stability.injection"), folder=tmp_path)["stability.injection"]
    assert result.verdict == verdict, result
    assert says in str(result.observed)


def test_an_engine_that_is_full_is_not_taken_for_one_that_mistakes_bad_input() -> None:
    with foreign(token_seconds=QUICK, full_by="top_p") as node:
        result = ask(node, just("resp.malformed"))["resp.malformed"]
    assert result.verdict == "inconclusive", result
    assert "refused with 503" in str(result.observed)


def test_a_number_that_was_missed_is_made_up_for_by_more_of_them(tmp_path: Path) -> None:
    lengths = {"lengths": (128, 256), "depths": (0, 50, 100)}
    with foreign(token_seconds=QUICK, forgets=(14,)) as node:
        result = ask(node, just("recall.grid", **lengths), folder=tmp_path)["recall.grid"]
        hurried = just("recall.grid", budget=0, **lengths)
        node.needles = 0
        open_ = ask(node, hurried, folder=tmp_path)["recall.grid"]
    assert result.verdict == "pass", result
    assert (result.n, len(result.evidence["more_runs"])) == (36, 1)
    assert "18/18 at 128, 17/18 at 256" in str(result.observed)
    assert (open_.verdict, open_.n) == ("inconclusive", 18), open_


def test_a_guard_by_prefix_is_found_out() -> None:
    with foreign(keyed=True) as node:
        checks = ask(node, load_profile("golive"), ("auth.routes", "auth.default_deny"))
    assert {c.verdict for c in checks.values()} == {"fail"}
    assert "POST /invocations" in str(checks["auth.routes"].observed)


def test_bounds_that_the_profile_names_are_tried_on_any_engine() -> None:
    with foreign() as node:
        checks = ask(node, just("claims.queue_bound", running=8, waiting=0, surplus=4))
    result = checks["claims.queue_bound"]
    assert (result.verdict, result.evidence["refused"]) == ("pass", 4), result


def test_a_bound_that_does_not_hold_is_a_failure_on_any_engine() -> None:
    with foreign() as node:
        burst = {"running": 4, "waiting": 0, "surplus": 2, "refused_within": 1}
        checks = ask(node, just("claims.queue_bound", **burst))
    assert checks["claims.queue_bound"].verdict == "fail"
    assert "6 requests held" in str(checks["claims.queue_bound"].observed)


def test_a_503_without_retry_after_is_a_remark_where_nobody_promised_it() -> None:
    with foreign() as node:
        checks = ask(node, just("claims.retry_after", running=8, waiting=0, surplus=4))
    assert checks["claims.retry_after"].verdict == "warn"
    assert "503" in str(checks["claims.retry_after"].observed)


@pytest.mark.parametrize(
    ("url", "verdict", "says"),
    [
        ("{node}", "pass", "leads to words"),
        ("{node}/elsewhere", "fail", "404"),
        ("http://127.0.0.1:9", "fail", "cannot be reached"),
        ("http://no-such-name.invalid", "fail", "not known"),
        ("gateway", "skip", "is not an http(s) URL"),
    ],
)
def test_the_gateway_is_asked_by_its_name(url: str, verdict: str, says: str) -> None:
    with foreign() as node:
        named = url.format(node=node.url)
        checks = ask(node, just("reach.gateway", url=named))
    result = checks["reach.gateway"]
    assert result.verdict == verdict, result
    assert says in str(result.observed)

"""The gate against another engine, seen from outside alone: what it does not show is skipped with the reason."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kvops.telemetry.targets import Target
from kvops.verify import runner
from kvops.verify.checks import CHECKS
from kvops.verify.profile import Entry, Profile, load_profile
from kvops.verify.result import CheckResult
from kvops.verify.selection import plan
from tests.verify.foreign import KEY, Foreign, foreign

AREAS = (
    "reach.",
    "health.",
    "resp.",
    "auth.",
    "claims.",
    "alerts.",
    "logs.",
    "metrics.",
    "disconnect.",
)
UNSEEN = {
    "metrics.contract", "disconnect.frees", "auth.control", "claims.queue_bound", "claims.deadline",
    "claims.tenant_quota", "claims.prefix_isolation", "alerts.drill", "claims.retry_after", "logs.no_prompts",
    "logs.clean",
}  # fmt: skip


def ask(node: Foreign, profile: Profile, only: tuple[str, ...] = ()) -> dict[str, CheckResult]:
    target = Target(name="other", url=node.url, api_key=KEY if node.keyed else None)
    report = asyncio.run(runner.run(target, None, "t", plan(profile, CHECKS, only)))
    return {result.id: result for result in report.checks}


def just(check: str, **parameters: Any) -> Profile:
    return Profile(
        schema_version=1, name="one", checks=[Entry(id=check, timeout=60, parameters=parameters)]
    )


def test_what_cannot_be_seen_is_skipped_with_its_reason() -> None:
    with foreign() as node:
        checks = ask(node, load_profile("golive"), AREAS)
    skipped = {i: c for i, c in checks.items() if c.verdict == "skip"}
    unguarded = {"reach.gateway", "auth.default_deny", "auth.routes"}
    assert set(skipped) == UNSEEN | unguarded
    assert all(c.observed for c in skipped.values())
    rest = {i: c.verdict for i, c in checks.items() if i not in skipped}
    assert rest.pop("resp.malformed") == "warn", (
        "an engine may be lenient, and the operator is told"
    )
    assert set(rest.values()) == {"pass"}, rest


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

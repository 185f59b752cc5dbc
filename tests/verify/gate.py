"""Asks the gate about a node, with parameters that give up soon, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvops.telemetry.clients.kvops import KvopsClient
from kvops.testing import FaultyNode
from kvops.verify import runner
from kvops.verify.checks import CHECKS
from kvops.verify.profile import Entry, Profile, load_profile
from kvops.verify.result import CheckResult, Report
from kvops.verify.runner import Terms
from kvops.verify.selection import plan

LIGHT = {"requests": 30, "max_users": 6, "prompt_tokens": 32, "max_tokens": 24}
HASTY: dict[str, dict[str, Any]] = {
    "reach.health": {"answer_within": 1},
    "metrics.contract": {"settle_within": 0.3},
    "memory.adds_up": {"idle_within": 0.3},
    "disconnect.frees": {"within": 0.7},
    "health.truth": {"token_within": 1},
    "claims.queue_bound": {"refused_within": 2},
    "claims.deadline": {"slack": 1},
    "claims.tenant_quota": {"within": 2},
    "perf.ttft_by_length": {"longest": 1024},
    "perf.rate_by_length": {"longest": 1024},
    "load.concurrency": LIGHT,
    "load.ledger": LIGHT,
    "kv.empty_after": LIGHT | {"within": 1},
    "memory.evictions": LIGHT,
    "resources.memory_peak": LIGHT,
}
"""By check, for a broken node, which is given up soon. What is not listed has the check's own."""


def smoke() -> Profile:
    return load_profile("smoke")


def one_by_one(*ids: str) -> Profile:
    """Just these checks, hastily."""
    entries = [Entry(id=name, timeout=60, parameters=HASTY.get(name, {})) for name in ids]
    return Profile(schema_version=1, name="hasty", checks=entries)


def gate(
    node: FaultyNode,
    profile: Profile,
    *,
    only: Sequence[str] = (),
    control: bool = True,
    key: bool = True,
    folder: Path | None = None,
    terms: Terms = Terms(),
) -> Report:
    """`control`: the control plane is known; `key`: the API key is, where the node has one."""

    async def run() -> Report:
        target = node.target(control=control, key=key)
        client = KvopsClient(target) if control else None
        try:
            checks = plan(profile, CHECKS, only)
            return await runner.run(
                target, client, profile.name, checks, terms=replace(terms, folder=folder)
            )
        finally:
            if client is not None:
                await client.aclose()

    return asyncio.run(run())


def the_check(report: Report, check_id: str) -> CheckResult:
    return next(result for result in report.checks if result.id == check_id)

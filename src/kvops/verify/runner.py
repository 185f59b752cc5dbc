"""Runs the planned checks one after the other; whatever a check does, it ends in a verdict within its time."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Literal

import httpx
import msgspec

from kvops import __version__
from kvops.errors import KvopsError, NodeError, NodeUnauthorized, NodeUnreachable
from kvops.telemetry.clients.base import NodeClient
from kvops.telemetry.targets import Target
from kvops.units import format_duration
from kvops.verify.api import Api
from kvops.verify.check import Finding, Outcome
from kvops.verify.context import Context
from kvops.verify.facts import Facts, discover
from kvops.verify.profile import PlannedCheck
from kvops.verify.result import CheckResult, Report, TargetFacts, exit_code
from kvops.verify.verdict import RunVerdict, overall

Progress = Callable[[int, PlannedCheck], None]
"""Called before each check with its index."""
Ended = Callable[[int, CheckResult], None]
"""Called after each check with its index."""
LeftOut = Mapping[str, Literal["--only", "--skip"]]


async def run(
    target: Target,
    node: NodeClient | None,
    profile: str,
    checks: Sequence[PlannedCheck],
    progress: Progress = lambda index, check: None,
    ended: Ended = lambda index, result: None,
    left_out: LeftOut = MappingProxyType({}),
) -> Report:
    """Run `checks` in order. A cancelled run still returns what it has, marked as interrupted.

    Raises NodeUnauthorized when the API key is refused.
    """
    gate = _Run(target, profile, checks, left_out)
    api = Api(target)
    try:
        facts = await discover(api, node)
        gate.facts = facts
        context = Context(target=target, api=api, node=node, facts=facts)
        await _run_checks(context, checks, gate.results, progress, ended)
    except NodeUnreachable as error:
        return gate.report("unreachable", reason=str(error))
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()
        return gate.report("interrupted", reason="stopped by Ctrl-C or SIGTERM")
    finally:
        await api.aclose()
    return gate.report(overall((r.severity, r.verdict) for r in gate.results))


class _Run:
    """What is known so far of one run."""

    def __init__(
        self, target: Target, profile: str, checks: Sequence[PlannedCheck], left_out: LeftOut
    ) -> None:
        self.started = datetime.now(UTC)
        self.run_id = f"{self.started:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
        self.target = target
        self.profile = profile
        self.checks = checks
        self.left_out = dict(left_out)
        self.facts = Facts()
        self.results: list[CheckResult] = []

    def report(self, verdict: RunVerdict, reason: str = "") -> Report:
        done = {result.id for result in self.results}
        return Report(
            run_id=self.run_id,
            started_at=self.started.isoformat(timespec="milliseconds"),
            finished_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            kvops_version=__version__,
            target=TargetFacts(
                url=self.target.url, name=self.target.name, **msgspec.structs.asdict(self.facts)
            ),
            profile=self.profile,
            checks=tuple(self.results),
            not_run=tuple(p.check.id for p in self.checks if p.check.id not in done),
            left_out=self.left_out,
            partial=bool(self.left_out) or len(done) < len(self.checks),
            verdict=verdict,
            exit_code=exit_code(verdict),
            reason=reason,
        )


async def _run_checks(
    context: Context,
    checks: Sequence[PlannedCheck],
    results: list[CheckResult],
    progress: Progress,
    ended: Ended,
) -> None:
    stopped_by = ""
    for index, planned in enumerate(checks):
        if stopped_by:
            results.append(_result(planned, _not_run(stopped_by), 0.0))
            ended(index, results[-1])
            continue
        progress(index, planned)
        started = time.monotonic()
        outcome = await _outcome(planned, context)
        results.append(_result(planned, outcome, time.monotonic() - started))
        ended(index, results[-1])
        if planned.entry.stop_on_fail and outcome.verdict in ("fail", "error"):
            stopped_by = planned.check.id


async def _outcome(planned: PlannedCheck, context: Context) -> Outcome:
    """Every exception has a verdict: what the node did is a fail, what the check did an error."""
    limit = planned.entry.timeout
    try:
        async with asyncio.timeout(limit):
            return await planned.check.run(context, planned.parameters)
    except Finding as finding:
        return finding.outcome
    except TimeoutError:
        return await _silent(context, f"not finished within {format_duration(limit)}")
    except httpx.TimeoutException as error:
        return await _silent(context, f"no answer to {_where(error)} in time")
    except httpx.TransportError as error:
        return _lost(f"connection lost at {_where(error)}: {_words(error)}", "the node went away")
    except NodeUnreachable as error:
        return _lost(error.message, "the control plane does not answer")
    except NodeUnauthorized as error:
        return _open(error.message, error.hint)
    except NodeError as error:
        return _lost(error.message, error.hint or "the node broke the protocol")
    except Exception as error:
        return _broken(f"{type(error).__name__}: {_words(error)}")


async def _silent(context: Context, what: str) -> Outcome:
    """Slow and hung look alike from here; `/livez`, which is about progress, tells them apart."""
    try:
        status = (await context.api.get("/livez", within=5)).status
    except httpx.TransportError:
        status = None
    if status in (200, 404):
        return _open(
            what, "the node moves but slowly: free its machine, or raise the timeout in the profile"
        )
    return _lost(f"{what}; /livez {status or 'does not answer'}", "the node hangs")


def _lost(what: str, why: str) -> Outcome:
    remedy = f"{why}: see kvops node logs, and kvops node status"
    return Outcome(verdict="fail", observed=what, expected="an answer", remedy=remedy)


def _open(what: str, remedy: str) -> Outcome:
    return Outcome(verdict="inconclusive", observed=what, expected="a result", remedy=remedy)


def _broken(what: str) -> Outcome:
    remedy = "the check itself broke: report it with the result file"
    return Outcome(verdict="error", observed=what, expected="a result", remedy=remedy)


def _not_run(cause: str) -> Outcome:
    reason = f"not run, because {cause} failed"
    return Outcome(verdict="inconclusive", observed=reason, expected="a result", n=0)


def _where(error: httpx.RequestError) -> str:
    try:
        return f"{error.request.method} {error.request.url.path}"
    except RuntimeError:
        return "the node"


def _words(error: Exception) -> str:
    text = error.message if isinstance(error, KvopsError) else str(error)
    return " ".join(text.split())[:200] or type(error).__name__


def _result(planned: PlannedCheck, outcome: Outcome, took: float) -> CheckResult:
    check = planned.check
    return CheckResult(
        id=check.id,
        title=check.title,
        purpose=check.purpose,
        severity=planned.entry.severity,
        verdict=outcome.verdict,
        observed=outcome.observed,
        expected=outcome.expected,
        unit=outcome.unit,
        n=outcome.n,
        took_seconds=round(took, 4),
        parameters=planned.parameters.model_dump(mode="json"),
        evidence=outcome.evidence,
        remedy=outcome.remedy,
    )

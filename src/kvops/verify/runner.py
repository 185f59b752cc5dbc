"""Runs the planned checks one after the other; whatever a check does, it ends in a verdict within its time."""

from __future__ import annotations

import asyncio
import os
import platform
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

import httpx
import msgspec

from kvops import __version__
from kvops.errors import KvopsError, NodeError, NodeUnauthorized, NodeUnreachable
from kvops.telemetry.clients.base import NodeClient
from kvops.telemetry.targets import Target
from kvops.units import format_duration
from kvops.verify import keeping, needs
from kvops.verify.addressed import addressed
from kvops.verify.api import Api
from kvops.verify.check import Finding, Outcome
from kvops.verify.context import Context, StillOpen
from kvops.verify.facts import Facts, discover
from kvops.verify.prompts import CannotFit
from kvops.verify.result import CheckResult, Environment, Report, TargetFacts, concluded, exit_code
from kvops.verify.selection import LeftOut, PlannedCheck
from kvops.verify.verdict import RunVerdict
from kvops.verify.waivers import Waiver, covering

Progress = Callable[[int, PlannedCheck], None]
"""Called before each check with its index."""
Ended = Callable[[int, CheckResult], None]
"""Called after each check with its index."""


def new_id() -> str:
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a run is held to beside its checks, and where it is kept while it goes on."""

    run_id: str = ""
    """Empty: a new one."""
    profile_source: str = ""
    profile_hash: str = ""
    waivers: tuple[Waiver, ...] = ()
    allow_remote: tuple[str, ...] = ()
    folder: Path | None = None
    keep: Callable[[Report], None] = lambda report: None
    """Called before the first check and after each, with what a crash after it would leave."""
    earlier: Report | None = None
    """The interrupted run that this one goes on with: what it has is not run again."""
    agrees: Callable[[Facts], None] = lambda facts: None
    """Raises when the node is not the one it was."""
    still_open: StillOpen = lambda name, samples: False
    """Whether a series needs more samples to be compared."""


async def run(
    target: Target,
    node: NodeClient | None,
    profile: str,
    checks: Sequence[PlannedCheck],
    progress: Progress = lambda index, check: None,
    ended: Ended = lambda index, result: None,
    left_out: LeftOut = MappingProxyType({}),
    terms: Terms = Terms(),
) -> Report:
    """Run `checks` in order. A cancelled run still returns what it has, marked as interrupted.

    Raises NodeUnauthorized when the API key is refused, and what `terms.agrees` raises.
    """
    gate = _Run(target, profile, checks, left_out, terms)
    api = Api(target)
    try:
        gate.facts = await discover(api, node)
        terms.agrees(gate.facts)
        context = Context(
            target=target,
            api=api,
            node=node,
            facts=gate.facts,
            folder=terms.folder,
            allow_remote=terms.allow_remote,
            still_open=terms.still_open,
        )
        await _run_checks(context, gate, progress, ended)
    except NodeUnreachable as error:
        return gate.report("unreachable", reason=str(error))
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()
        return gate.report("interrupted", reason="stopped by Ctrl-C or SIGTERM")
    finally:
        await api.aclose()
    return gate.report(concluded(gate.results))


def _waived(result: CheckResult, terms: Terms) -> CheckResult:
    """An earlier result under the waivers that are given now."""
    waiver = result.waived or covering(terms.waivers, result.id, result.verdict)
    return msgspec.structs.replace(result, waived=waiver)


class _Run:
    """What is known so far of one run."""

    def __init__(
        self,
        target: Target,
        profile: str,
        checks: Sequence[PlannedCheck],
        left_out: LeftOut,
        terms: Terms,
    ) -> None:
        self.target, self.profile, self.checks, self.terms = target, profile, checks, terms
        self.run_id = terms.run_id or new_id()
        self.left_out = dict(left_out)
        self.facts = Facts()
        earlier = terms.earlier.checks if terms.earlier else ()
        self.results = [_waived(result, terms) for result in earlier]
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        self.started = terms.earlier.started_at if terms.earlier else now
        self.resumed = (*terms.earlier.resumed_at, now) if terms.earlier else ()

    def done(self) -> dict[str, CheckResult]:
        return {result.id: result for result in self.results}

    def add(self, result: CheckResult) -> None:
        """Keep a result, and with it what this run would be if it ended here."""
        self.results.append(result)
        self.keep()

    def keep(self) -> None:
        self.terms.keep(self.report("interrupted", reason="ended before its last check"))

    def report(self, verdict: RunVerdict, reason: str = "") -> Report:
        done = self.done()
        order = {planned.check.id: index for index, planned in enumerate(self.checks)}
        return Report(
            run_id=self.run_id,
            started_at=self.started,
            finished_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            kvops_version=__version__,
            target=TargetFacts(
                url=self.target.url, name=self.target.name, **msgspec.structs.asdict(self.facts)
            ),
            profile=self.profile,
            profile_source=self.terms.profile_source,
            profile_hash=self.terms.profile_hash,
            environment=_environment(),
            checks=tuple(sorted(self.results, key=lambda result: order[result.id])),
            not_run=tuple(p.check.id for p in self.checks if p.check.id not in done),
            left_out=self.left_out,
            waivers=self.terms.waivers,
            resumed_at=self.resumed,
            partial=bool(self.left_out) or len(done) < len(self.checks),
            verdict=verdict,
            exit_code=exit_code(verdict),
            reason=reason,
        )


def _environment() -> Environment:
    return Environment(
        host=socket.gethostname(), cores=os.cpu_count() or 0, platform=platform.platform(terse=True)
    )


async def _run_checks(context: Context, gate: _Run, progress: Progress, ended: Ended) -> None:
    stopped_by, done = "", gate.done()
    gate.keep()
    for index, planned in enumerate(gate.checks):
        if planned.check.id in done:
            if _stops(planned, done[planned.check.id]):
                stopped_by = planned.check.id
            continue
        started, clock = datetime.now(UTC), time.monotonic()
        if stopped_by:
            outcome = _not_run(stopped_by)
        else:
            progress(index, planned)
            outcome = addressed(await _outcome(planned, context), context)
        took = 0.0 if stopped_by else time.monotonic() - clock
        terms = gate.terms
        result = keeping.row(
            planned,
            outcome,
            started=started,
            took=took,
            waivers=terms.waivers,
            folder=terms.folder,
        )
        gate.add(result)
        ended(index, result)
        if _stops(planned, result):
            stopped_by = planned.check.id


def _stops(planned: PlannedCheck, result: CheckResult) -> bool:
    failed = result.verdict in ("fail", "error") and result.waived is None
    return planned.entry.stop_on_fail and failed


async def _outcome(planned: PlannedCheck, context: Context) -> Outcome:
    """Every exception has a verdict: what the node did is a fail, what the check did an error."""
    limit = planned.entry.timeout
    try:
        await needs.met(planned.check, context)
        async with asyncio.timeout(limit):
            return await planned.check.run(context, planned.parameters)
    except Finding as finding:
        return finding.outcome
    except CannotFit as unfit:
        return _open(unfit.reason, unfit.remedy)
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

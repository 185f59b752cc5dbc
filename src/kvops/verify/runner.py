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

import msgspec

from kvops import __version__
from kvops.errors import NodeUnreachable
from kvops.telemetry.clients.base import NodeClient
from kvops.telemetry.targets import Target
from kvops.verify import beginning, keeping, resume
from kvops.verify.addressed import addressed
from kvops.verify.api import Api
from kvops.verify.check import Outcome
from kvops.verify.context import Context, StillOpen
from kvops.verify.ending import outcome_of
from kvops.verify.facts import Facts, discover
from kvops.verify.result import (
    CheckResult,
    Compares,
    Environment,
    Report,
    TargetFacts,
    concluded,
    exit_code,
)
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
    compares: Compares | None = None


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
    api = Api(target)
    gate = _Run(target, profile, checks, left_out, terms, api)
    try:
        gate.facts = resume.known(terms.earlier, await discover(api, node))
        terms.agrees(gate.facts)
        await _run_checks(await _context(gate, node), gate, progress, ended)
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


async def _context(gate: _Run, node: NodeClient | None) -> Context:
    """Whatever is compared with the beginning of the run is compared with that of its first part."""
    part, earlier = await beginning.seen(node), gate.terms.earlier
    if gate.first is None and not (earlier and earlier.checks):
        gate.first = part
    return Context(
        target=gate.target,
        api=gate.api,
        node=node,
        facts=gate.facts,
        folder=gate.terms.folder,
        allow_remote=gate.terms.allow_remote,
        still_open=gate.terms.still_open,
        began=part.at if earlier is None else resume.began(earlier),
        first=gate.first,
        part=part,
    )


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
        api: Api,
    ) -> None:
        self.target, self.profile, self.checks, self.terms = target, profile, checks, terms
        self.run_id = terms.run_id or new_id()
        self.left_out = dict(left_out)
        self.api = api
        self.facts = resume.known(terms.earlier, Facts())
        self.first = terms.earlier.beginning if terms.earlier else None
        if terms.earlier:
            api.refusals.extend(terms.earlier.refusals)
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
            beginning=self.first,
            refusals=keeping.kinds(self.api.refusals),
            compares=self.terms.compares,
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
            outcome = addressed(await outcome_of(planned, context), context)
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


def _not_run(cause: str) -> Outcome:
    reason = f"not run, because {cause} failed"
    return Outcome(verdict="inconclusive", observed=reason, expected="a result", n=0)

"""All that a gate run is asked for, checked as far as it can be before anything is sent to a node."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kvops.errors import UsageError
from kvops.load.targets import resolve
from kvops.telemetry import fleet
from kvops.telemetry.targets import Target
from kvops.verify import baseline, needs, outputs, resume
from kvops.verify.checks import CHECKS
from kvops.verify.profile import is_file, load_profile
from kvops.verify.result import Compares, Report
from kvops.verify.selection import Plan, select
from kvops.verify.waivers import Waiver, waivers


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Options as they were typed."""

    node: str | None = None
    profile: str = "smoke"
    only: Sequence[str] = ()
    skip: Sequence[str] = ()
    wanted: outputs.Wanted = field(default_factory=dict)
    baseline: str | None = None
    force_baseline: bool = False
    require_baseline: bool = False
    waive: Sequence[str] = ()
    reason: Sequence[str] = ()
    resume: str | None = None
    allow_remote: Sequence[str] = ()
    api_key_file: Path | None = None
    token_file: Path | None = None
    control_url: str | None = None

    def again(self) -> list[tuple[str, ...]]:
        """Options that going on with this run needs too; the rest is in its result. Of a secret, the file's path."""
        single = {
            "--node": self.node,
            "--api-key-file": self.api_key_file,
            "--token-file": self.token_file,
            "--control-url": self.control_url,
            **{f"--{kind}": where for kind, where in self.wanted.items()},
        }
        given = [(option, str(value)) for option, value in single.items() if value is not None]
        return [*given, *(("--allow-remote", host) for host in self.allow_remote)]

    def compares(self) -> Compares | None:
        """As it can be gone on with from another folder."""
        if self.baseline is None:
            return None
        path = Path(self.baseline)
        named = str(path.resolve()) if os.path.exists(path) else self.baseline
        return Compares(baseline=named, force=self.force_baseline, required=self.require_baseline)


@dataclass(frozen=True, kw_only=True)
class Order:
    asked: Asked
    target: Target
    plan: Plan
    waivers: tuple[Waiver, ...] = ()
    before: Report | None = None
    """The run that `--baseline` names; None without one, and for `last`, which is found when the node is known."""
    earlier: Report | None = None
    """The interrupted run to go on with."""


def prepare(asked: Asked) -> Order:
    """Raises UsageError, ConfigError, NodeNotFound before anything is sent to a node."""
    earlier = None if asked.resume is None else resume.unfinished(asked.resume)
    asked = _compared_again(asked, earlier)
    plan = _plan(asked) if earlier is None else _plan_again(asked, earlier)
    given = waivers(
        asked.waive,
        asked.reason,
        [planned.check.id for planned in plan.checks],
        compares=asked.baseline is not None,
    )
    before = _baseline(asked, plan)
    outputs.require_places(asked.wanted)
    known = fleet.read()
    target = resolve(
        asked.node or (earlier.target.url if earlier else None),
        known,
        api_key_file=asked.api_key_file,
        token_file=asked.token_file,
        control_url=asked.control_url,
    )
    if earlier is not None:
        resume.require_same(earlier, plan, target)
    needs.require_allowed(plan.checks, target, asked.allow_remote, known)
    return Order(
        asked=asked,
        target=target,
        plan=plan,
        waivers=_together(earlier, given),
        before=before,
        earlier=earlier,
    )


def _compared_again(asked: Asked, earlier: Report | None) -> Asked:
    """A run that goes on is compared as it was asked to be when it was started, unless this time says otherwise."""
    if earlier is None or earlier.compares is None or asked.baseline is not None:
        return asked
    then = earlier.compares
    return replace(
        asked,
        baseline=then.baseline,
        force_baseline=asked.force_baseline or then.force,
        require_baseline=asked.require_baseline or then.required,
    )


def _baseline(asked: Asked, plan: Plan) -> Report | None:
    if asked.baseline is not None:
        return baseline.named(asked.baseline, [planned.check.id for planned in plan.checks])
    for option, given in (
        ("--force-baseline", asked.force_baseline),
        ("--require-baseline", asked.require_baseline),
    ):
        if given:
            raise UsageError(f"{option}: nothing is compared", hint="add --baseline RUN")
    return None


def _plan(asked: Asked) -> Plan:
    source = str(Path(asked.profile).resolve()) if is_file(asked.profile) else asked.profile
    return select(load_profile(asked.profile), source, CHECKS, asked.only, asked.skip)


def _plan_again(asked: Asked, earlier: Report) -> Plan:
    """Of the run to go on with, from its profile as that is now. Raises UsageError, ConfigError."""
    if asked.only or asked.skip:
        raise UsageError(
            "--resume goes on with the checks that the run was started with",
            hint="leave --only and --skip out",
        )
    source = earlier.profile_source or earlier.profile
    return select(load_profile(source), source, CHECKS).without(earlier.left_out)


def _together(earlier: Report | None, given: Sequence[Waiver]) -> tuple[Waiver, ...]:
    """Those of the run so far, and those of now, which stand in the place of one for the same check."""
    now = {waiver.id for waiver in given}
    kept = [waiver for waiver in (earlier.waivers if earlier else ()) if waiver.id not in now]
    return (*kept, *given)

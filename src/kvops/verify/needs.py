"""What a check needs before it can say anything: looked at for all checks alike, so that none passes for want of it."""

from __future__ import annotations

from collections.abc import Sequence

from kvops.errors import UsageError
from kvops.telemetry.fleet import Fleet
from kvops.telemetry.targets import Target
from kvops.verify.check import Check, Finding, inconclusive, skip
from kvops.verify.context import Context
from kvops.verify.occupancy import Occupancy, wait_until
from kvops.verify.selection import PlannedCheck

IDLE_WITHIN = 15.0
"""Seconds that a node has to finish what earlier checks or clients left in flight."""


def require_allowed(
    checks: Sequence[PlannedCheck], target: Target, allowed: Sequence[str], fleet: Fleet
) -> None:
    """Raises UsageError when a check sends a load and the target is another machine that was not named, or a node

    whose fleet entry does not allow load.
    """
    from kvops.load.targets import check_target

    heavy = [planned.check.id for planned in checks if "load" in planned.check.needs]
    if not heavy:
        return
    try:
        check_target(target.url, allowed, fleet)
    except UsageError as error:
        raise UsageError(
            f"{error.message}; {', '.join(heavy)} would send a load",
            hint=f"{error.hint}; else leave them out: {' '.join(f'--skip {name}' for name in heavy)}",
        ) from None


async def met(check: Check, context: Context) -> None:
    """Ends the check, skipped or inconclusive, where it has not what it needs."""
    if "control plane" in check.needs and context.node is None:
        skip(
            "no control plane is known for this node",
            remedy="for a node of kvops: --control-url URL and --token-file FILE",
        )
    if "idle node" in check.needs:
        seen, idle = await _idle(context)
        if not idle:
            inconclusive(
                f"{seen.running:.0f} running and {seen.waiting:.0f} waiting requests of others",
                expected="an idle node",
                remedy="drain it, or stop what else uses it: kvops node status",
                n=0,
            )


async def _idle(context: Context) -> tuple[Occupancy, bool]:
    """Where an engine does not show what is in flight, the check itself has to tell."""
    try:
        return await wait_until(context, lambda o: not (o.running or o.waiting), IDLE_WITHIN)
    except Finding:
        return Occupancy(0, 0, 0, 0), True

"""A load run inside the gate: one of kvops' scenarios by its own load runner, kept under the gate's run.

The load never outlives the check that sends it: a check that runs out of time, and a gate that is interrupted, stop it
and wait until it is gone.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvops.errors import UsageError
from kvops.load import launcher, runs, scenarios
from kvops.load.pacing import Pacing
from kvops.load.records import RequestRecord
from kvops.load.reports.base import RunData, read
from kvops.load.statistics import client_health
from kvops.verify.check import Artifact, inconclusive
from kvops.verify.context import Context

Enough = Callable[[Sequence[RequestRecord]], bool]
_LOOK_AT_BROKEN = "see locust.log in the run folder"


def never(_records: Sequence[RequestRecord]) -> bool:
    return False


async def drive(
    context: Context,
    scenario: str,
    *,
    users: int,
    duration: float | None,
    options: Mapping[str, Any] | None = None,
    pacing: Pacing | None = None,
    seed: int | None = None,
    enough: Enough = never,
) -> RunData:
    """Run `scenario` to its end, for `duration` seconds, or until its records are `enough`.

    Without a `seed` its prompts are new ones: a node that has seen those of an earlier gate answers from its cache.

    Ends the check as inconclusive when the run itself broke. Raises what the launcher raises.
    """
    known = scenarios.find(scenario)
    plan = launcher.Plan(
        scenario=known,
        target=context.target,
        options=known.defaults() | dict(options or {}),
        users=users,
        duration=duration,
        seed=secrets.randbelow(2**31) if seed is None else seed,
        out=context.folder,
        pacing=pacing or known.pacing or Pacing(),
        allow_remote=context.allow_remote,
    )
    try:
        data = read(await _run(plan, enough))
    except UsageError as error:
        inconclusive(
            f"the load does not fit this node: {error.message}",
            expected="a load that it can take",
            remedy=f"change it in the profile: {error.hint}",
            n=0,
        )
    if data.info.status == "failed":
        inconclusive(
            f"the load run broke: {data.info.reason}",
            expected="a load run",
            remedy=_LOOK_AT_BROKEN,
            n=0,
            run=str(data.folder),
        )
    return data


async def _run(plan: launcher.Plan, enough: Enough) -> runs.Run:
    """In a thread, for the launcher blocks. Cancelled, it stops the load before it lets go."""
    stop, satisfied = threading.Event(), False

    def look(progress: launcher.Progress) -> None:
        nonlocal satisfied
        if not satisfied and enough(progress.records):
            satisfied = True
            stop.set()

    running = asyncio.create_task(asyncio.to_thread(launcher.run, plan, look, stop))
    try:
        made = await asyncio.shield(running)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait({running})
        raise
    if satisfied and made.info.status == "interrupted":
        made.finish("finished", "ended by the gate, with as many answers as it needs")
    return made


def trusted(data: RunData) -> RunData:
    """`data`, unless the load generator was itself the bottleneck: then the check is open."""
    doubt = client_health(data.client, data.records).doubt
    if doubt is not None:
        inconclusive(
            doubt,
            expected="a load generator with time to spare",
            remedy="give the machine that runs the gate a core of its own, or lower the users in the profile",
            n=len(data.records),
            **kept(data),
        )
    return data


def excused(data: RunData, slow: str, check: str) -> None:
    """Ends the check as open where others took this machine's CPUs meanwhile: what is slow need not be the node."""
    crowd = client_health(data.client, data.records).crowd
    if crowd is not None:
        inconclusive(
            f"{slow}; {crowd}",
            expected="a machine that the node has to itself",
            remedy=f"stop what else runs there, and let the check run again: --only {check}",
            n=len(data.records),
            **kept(data),
        )


def kept(data: RunData) -> dict[str, Any]:
    """What evidence says of a load run."""
    health = client_health(data.client, data.records)
    return {
        "run": data.info.run,
        "requests": len(data.records),
        "users": data.info.users,
        "others_cpu_median": health.others,
        "client_cpu_max": health.cpu_max,
        "client_lag_max": health.lag_max,
    }


def artifact(data: RunData) -> Artifact:
    return Artifact(title=f"load run {data.info.scenario}", path=str(data.folder))

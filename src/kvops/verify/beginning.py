"""What a node was when its run began: what happened since is told from it, also in a run that goes on after a break."""

from __future__ import annotations

import time
from typing import Annotated

import msgspec
from msgspec import Meta

from kvops.errors import NodeError
from kvops.telemetry.clients.base import NodeClient
from kvops.telemetry.snapshot import Known, NodeSnapshot

SLACK = 5.0
"""Seconds by which an uptime may lag behind the clock of the gate."""


class Beginning(msgspec.Struct, frozen=True, kw_only=True):
    """What the node does not tell is None."""

    at: Annotated[float, Meta(ge=0, le=1e12)]
    """Unix seconds, on the clock of the gate."""
    uptime: Annotated[float, Meta(ge=0, le=1e12)] | None = None
    """Seconds that the node had been up."""
    engine_restarts: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    """Since the node started."""


class Since(msgspec.Struct, frozen=True):
    """What happened to the node's processes since the run began, in words."""

    faults: tuple[str, ...] = ()
    """While the gate ran, or to the engine of a node that went on."""
    remarks: tuple[str, ...] = ()
    """While no part of the run went on."""


async def seen(node: NodeClient | None) -> Beginning:
    try:
        return of(None if node is None else await node.snapshot())
    except NodeError:
        return of(None)


def of(snapshot: NodeSnapshot | None) -> Beginning:
    if snapshot is None:
        return Beginning(at=time.time())
    uptime, progress = snapshot.uptime_seconds, snapshot.progress
    return Beginning(
        at=time.time(),
        uptime=max(0.0, uptime.value) if isinstance(uptime, Known) else None,
        engine_restarts=progress.value.engine_restarts if isinstance(progress, Known) else None,
    )


def since(first: Beginning, part: Beginning, now: Beginning, elapsed: float) -> Since:
    """`first`: of the first part of the run; `part`: of the one that goes on, `elapsed` seconds before `now` by a clock
    that nobody sets.
    """
    faults, remarks = [], []
    anew = _started_anew(part, now, elapsed)
    between = part is not first and _started_anew(first, part, part.at - first.at)
    if anew:
        faults.append("the node itself was started anew")
    if between:
        remarks.append("the node was started anew between two parts of this run")
    before = 0 if anew or between else first.engine_restarts
    if before is not None and now.engine_restarts is not None and now.engine_restarts > before:
        count = now.engine_restarts - before
        faults.append(f"{count} engine restart{'' if count == 1 else 's'}")
    return Since(tuple(faults), tuple(remarks))


def _started_anew(before: Beginning, after: Beginning, elapsed: float) -> bool:
    if before.uptime is None or after.uptime is None:
        return False
    return after.uptime + SLACK < before.uptime + max(0.0, elapsed)

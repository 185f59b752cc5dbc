"""How often a node's engine was replaced: a check that sends it something odd compares before and after.

What happened between checks, and between parts of a run, `beginning` tells.
"""

from __future__ import annotations

from kvops.telemetry.snapshot import Known
from kvops.verify.context import Context


async def engine_restarts(context: Context) -> int | None:
    """Since the node started; None where it does not tell."""
    if context.node is None:
        return None
    progress = (await context.node.snapshot()).progress
    return progress.value.engine_restarts if isinstance(progress, Known) else None

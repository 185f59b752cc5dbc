"""A check says `kvops node logs`; only a node of this machine has some, and they are had by its name."""

from __future__ import annotations

import msgspec

from kvops.verify import logfiles
from kvops.verify.check import Outcome
from kvops.verify.context import Context

_COMMAND = "kvops node logs"


def addressed(outcome: Outcome, context: Context) -> Outcome:
    """`outcome` with the log in its remedy as that of the node that was looked at."""
    if _COMMAND not in outcome.remedy:
        return outcome
    name = context.target.name
    where = f"{_COMMAND} --node {name}" if logfiles.is_here(context) else "the node's own log"
    return msgspec.structs.replace(outcome, remedy=outcome.remedy.replace(_COMMAND, where))

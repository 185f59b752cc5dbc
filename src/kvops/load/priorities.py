"""Whether a node takes the `priority` field of kvops: other engines have none, or another one of that name.

Imports locust.
"""

from __future__ import annotations

from typing import Any

from gevent.event import AsyncResult

from kvops.load.exchange import Exchange
from kvops.load.locust_user import NodeUser, Outcome
from kvops.load.refusals import STATUSES

NONE = "none"
"""Send no class."""
_REFUSED = (400, 422)
_taken: dict[str, AsyncResult] = {}
"""By class, for all users of this process."""


def fields(user: NodeUser, priority: str) -> dict[str, Any]:
    """For the body of a request: nothing where the node refuses it. The first user asks, the others wait for that."""
    if priority == NONE:
        return {}
    if priority not in _taken:
        _taken[priority] = AsyncResult()
        got = user.chat("Hello", max_tokens=1, name="probe", judge=_known, priority=priority)
        _taken[priority].set(got.status not in _REFUSED)
    return {"priority": priority} if _taken[priority].get() else {}


def _known(got: Exchange) -> Outcome:
    """A node that does not know the field may refuse it, and one that is full any request."""
    if got.status in (200, *_REFUSED, *STATUSES):
        return Outcome()
    return Outcome(error_class=got.error_class, message=got.message)

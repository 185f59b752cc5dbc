"""Whether a node takes the `priority` field of kvops: other engines have none, or another one of that name.

Imports locust.
"""

from __future__ import annotations

from kvops.load.exchange import Exchange
from kvops.load.locust_user import NodeUser, Outcome

_taken: dict[str, bool] = {}
"""By class, for all users of this process."""


def fields(user: NodeUser, priority: str | None) -> dict[str, str]:
    """For the body of a request: nothing where the node refuses it. Asks once, for one token."""
    if priority is None:
        return {}
    if priority not in _taken:
        _taken[priority] = False  # the others ask without it until the answer is in
        got = user.chat("Hello", max_tokens=1, name="probe", judge=_any_answer, priority=priority)
        _taken[priority] = got.status == 200
    return {"priority": priority} if _taken[priority] else {}


def _any_answer(got: Exchange) -> Outcome:
    """A node that does not know the field may refuse it."""
    if got.status in (200, 400, 422):
        return Outcome()
    return Outcome(error_class=got.error_class, message=got.message)

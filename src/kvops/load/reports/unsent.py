"""Requests that were due in an open loop while the client had no room for them: nobody's answer was wrong."""

from __future__ import annotations

from collections.abc import Sequence

from kvops.load.records import ErrorClass, RequestRecord
from kvops.load.reports.base import failure_lines
from kvops.load.reports.cells import counted


def told(records: Sequence[RequestRecord]) -> tuple[list[str], list[str]]:
    """What failed of all that was sent, and as a gap what was not."""
    sent = [one for one in records if one.error_class is not ErrorClass.CLIENT_SATURATED]
    left = len(records) - len(sent)
    gap = f"{counted(left, 'request')} had no room at the client and had to be left out: raise --max-in-flight"
    return failure_lines(sent), [gap] if left else []

"""Refusals under load: an answer that says when to come back is a right one, and a good client then waits."""

from __future__ import annotations

import math

from kvops.load.exchange import Exchange

STATUSES = (429, 503)
LONGEST_WAIT = 30.0
"""Seconds: a client of a test does not wait longer, whatever it is told."""


def refused(got: Exchange) -> bool:
    return got.status in STATUSES


def retry_after(got: Exchange) -> float | None:
    """Seconds, bounded; None where the header is missing or is no number of seconds."""
    try:
        seconds = float(got.headers.get("retry-after", ""))
    except ValueError:
        return None
    return None if math.isnan(seconds) or seconds < 0 else min(seconds, LONGEST_WAIT)

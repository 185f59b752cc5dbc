"""How a scenario's own table shows times: the middle and the end, failed requests infinitely slow."""

from __future__ import annotations

import math

from kvops.load.reports.cells import UNKNOWN, seconds
from kvops.load.statistics import Quantile, Series


def cells(one: Series) -> tuple[str, str]:
    """p50 and p95."""
    if one.samples + one.failures == 0:
        return UNKNOWN, UNKNOWN
    return seconds(one.p50_with_failures, 0.50), seconds(one.p95_with_failures, 0.95)


def ratio(later: Quantile, before: Quantile) -> float | None:
    """How many times longer; None where one is missing, infinite for one that failed."""
    if later is None or before is None or before == "inf" or before == 0:
        return None
    return math.inf if later == "inf" else float(later) / float(before)


def number(value: Quantile) -> float | None:
    """None for one that is missing or failed."""
    return None if value is None or value == "inf" else float(value)


def finite(value: float | None) -> float | None:
    """For JSON, which knows no infinity."""
    return None if value is None or math.isinf(value) else value


def times(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return "∞" if math.isinf(value) else f"{value:.1f}x"

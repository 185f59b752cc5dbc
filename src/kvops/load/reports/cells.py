"""How a number of a report is written: a percentile without enough samples says how many there were."""

from __future__ import annotations

from kvops.load.statistics import Quantile, Series
from kvops.units import format_duration


def seconds(value: Quantile, of: Series, *, failures: bool = False) -> str:
    if value is None:
        return f"n/a (n={of.samples + (of.failures if failures else 0)})"
    return "failed" if value == "inf" else format_duration(float(value))

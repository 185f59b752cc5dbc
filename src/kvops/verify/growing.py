"""Memory under a load that stays the same: how fast it grows, what is put up with, and what would have been seen.

A leak is told per 1,000 requests, which says what it is at any load, and an hour of this one. Judged is the slope's
interval: its lower end has to be over what is allowed for a leak to be sure, its upper end below for there to be none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from pydantic import Field

from kvops.load.records import RequestRecord
from kvops.load.statistics import Trend, trend
from kvops.units import format_bytes, format_duration
from kvops.verify.soaked import Soaked, SoakParameters
from kvops.verify.watch import ENGINE, Readings

OTHER = "other memory"
MEMORY = ("resident memory", "daemon memory", ENGINE, OTHER)
SETTLE = 0.25
"""Share of the soak at its start, in which caches fill and pools grow to what the load needs."""
KEPT_PER_REQUEST = 16 * 2**10
KEPT_PER_TOKEN = 128
"""Bytes that a sound node keeps for some minutes of each request and of each token, to show percentiles of them: in a
soak that is shorter they look like a leak."""
HOUR = 3600.0
THOUSAND = 1000


class GrowthParameters(SoakParameters):
    leak: int = Field(default=32 * 2**20, ge=0)
    """Bytes by which memory may grow per 1,000 requests, beside what is kept of their tokens for percentiles."""
    hours: float = Field(default=24, gt=0)
    """A node that would fill the free memory sooner leaks, too."""
    floor: int = Field(default=2 * 2**20, ge=0)
    """Bytes by which memory may grow over the soak whatever the load: allocators take it in pieces."""
    share: float = Field(default=0.01, ge=0, le=1)
    """Of the device's memory by which what is in no account may grow over the soak."""
    slack: int = Field(default=16, ge=0)
    """More files, threads or tasks than before that an idle node may have."""
    settle_within: float = Field(default=10.0, gt=0)
    """Seconds until they must be back."""


class Rise(msgspec.Struct, frozen=True, kw_only=True):
    """Of one memory reading over one soak."""

    name: str
    trend: Trend
    allowed: float
    """Bytes a second."""
    per_second: float
    """Requests."""
    shared: bool = False
    """Other programs of the machine are part of the reading."""
    free: float | None = None
    """Bytes that are left to be filled; None where that is not known."""

    @property
    def is_leak(self) -> bool:
        return self.trend.low > self.allowed

    @property
    def is_none(self) -> bool:
        """Surely no leak. Of a reading that others share only the certainty of one counts."""
        return not self.is_leak if self.shared else self.trend.high <= self.allowed

    @property
    def seen_from(self) -> float:
        """The smallest leak that would have been sure, bytes a second: noise as it was takes the rest."""
        return self.allowed + max(0.0, self.trend.slope - self.trend.low)

    def per_thousand(self, rate: float) -> float:
        return rate / self.per_second * THOUSAND

    def said(self, rate: float) -> str:
        amount = self.per_thousand(rate)
        return f"{'+' if amount >= 0 else '-'}{format_bytes(abs(amount))}"

    def alarm(self) -> str:
        slope = self.trend.slope
        full = f", full in {format_duration(self.free / slope)}" if self.free and slope > 0 else ""
        return (
            f"{self.name} {self.said(slope)} per 1,000 requests (at least {self.said(self.trend.low)}), "
            f"{format_bytes(slope * HOUR)} an hour{full}"
        )

    def doubt(self) -> str:
        ends = f"{self.said(self.trend.low)} to {self.said(self.trend.high)}"
        whose = "; other programs of the machine are part of it" if self.shared else ""
        return f"{self.name} {ends} per 1,000 requests, where {self.said(self.allowed)} are allowed{whose}"


def rises(found: Soaked, parameters: GrowthParameters) -> dict[str, Rise]:
    """Of each memory reading once the start is left out. What all programs of a machine use together is left out where
    the engine's own part is known.
    """
    readings, rate = found.readings, requests_per_second(found.data.records)
    made = {}
    for name, one in trends_of(readings).items():
        shared = name == OTHER and not readings.device.startswith("cuda")
        if shared and ENGINE in readings.series:
            continue
        on_device = name == OTHER or readings.device == "cpu"
        free = readings.free_memory if on_device else None
        most = allowed(parameters, rate, one.span, free)
        if name == OTHER and readings.total_memory is not None:
            most = max(most, parameters.share * readings.total_memory / one.span)
        made[name] = Rise(
            name=name, trend=one, allowed=most, per_second=rate, shared=shared, free=free
        )
    return made


def allowed(parameters: GrowthParameters, rate: float, span: float, free: float | None) -> float:
    """Bytes a second."""
    tokens = KEPT_PER_TOKEN * parameters.max_tokens
    most = rate * (parameters.leak / THOUSAND + tokens)
    if free is not None:
        most = min(most, free / (parameters.hours * HOUR))
    return max(most, rate * (KEPT_PER_REQUEST + tokens), parameters.floor / span)


def requests_per_second(records: Sequence[RequestRecord]) -> float:
    """From the first that was sent to the end of the last."""
    span = max(r.t_send + r.e2e for r in records) - min(r.t_send for r in records) if records else 0
    return len(records) / span if span > 0 else 1.0


def trends_of(readings: Readings) -> dict[str, Trend]:
    """Of each memory reading, once the start is left out."""
    found = {}
    for name in MEMORY:
        times, values = readings.series.get(name, ([], []))
        kept = [(t, v) for t, v in zip(times, values, strict=True) if t >= SETTLE * times[-1]]
        one = trend([t for t, _ in kept], [v for _, v in kept])
        if one is not None:
            found[name] = one
    return found


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """What one or two soaks tell: who leaks does so in each, and one that shows none is enough."""

    rises: dict[str, Rise]
    """Of the last soak."""
    leaks: dict[str, str]
    """By reading, in words."""
    open: dict[str, str]


def together(soaks: Sequence[Mapping[str, Rise]]) -> Growth:
    """Of soaks in the order they were made; a reading that one of them lacks is judged by the others."""
    last = {name: rise for soak in soaks for name, rise in soak.items()}
    leaks, undecided = {}, {}
    for name, rise in last.items():
        seen = [soak[name] for soak in soaks if name in soak]
        if any(one.is_none for one in seen):
            continue
        if not rise.shared and all(one.is_leak for one in seen):
            leaks[name] = rise.alarm()
        else:
            undecided[name] = rise.doubt()
    return Growth(rises=last, leaks=leaks, open=undecided)


def summed_up(growth: Growth) -> str:
    """How much it grew, and the smallest leak that would have been seen."""
    grew = ", ".join(f"{name} {one.said(one.trend.slope)}" for name, one in growth.rises.items())
    own = [one for one in growth.rises.values() if not one.shared]
    most = [one.per_thousand(one.seen_from) for one in own]
    seen = [f"a leak of {format_bytes(max(most))} would have been seen"] if most else []
    seen += [
        f"in {one.name} only one of {format_bytes(one.per_thousand(one.seen_from))}"
        for one in growth.rises.values()
        if one.shared
    ]
    return f"per 1,000 requests: {grew}; {', '.join(seen)}"

"""Fixed-size memory of readings for trend lines. A time without a reading is a gap (None), never a zero.

A slot is one second. Between two good polls of the same run the later value fills the slots, so a slow poll
draws a line; after a lost poll or a long silence the slots stay empty.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping

from kvops.telemetry.snapshot import Known, NodeSnapshot

_GAP = math.nan


class Series:
    """The last `size` seconds of one reading, addressed by absolute second."""

    def __init__(self, size: int) -> None:
        self._slots = array("d", [_GAP]) * size
        self._newest: int | None = None

    @property
    def newest(self) -> int | None:
        return self._newest

    def put(self, second: int, value: float | None, *, fill_from: int | None = None) -> None:
        """Set `second`, and the seconds from `fill_from` on to the same value. Older than the newest: ignored."""
        if self._newest is not None and second < self._newest:
            return
        start = self._newest + 1 if self._newest is not None else second
        for gap in range(max(start, second - len(self._slots) + 1), second):
            filled = value is not None and fill_from is not None and gap >= fill_from
            self._slots[gap % len(self._slots)] = value if filled and value is not None else _GAP
        self._slots[second % len(self._slots)] = _GAP if value is None else value
        self._newest = second

    def get(self, second: int) -> float | None:
        newest = self._newest
        if newest is None or not newest - len(self._slots) < second <= newest:
            return None
        value = self._slots[second % len(self._slots)]
        return None if math.isnan(value) else value


class History:
    """Named series of one node, all on the same clock (Unix seconds)."""

    def __init__(self, seconds: int = 1800) -> None:
        self._size = seconds
        self._series: dict[str, Series] = {}
        self._last_good: int | None = None

    def record(self, at: float, values: Mapping[str, float | None], *, hold: float) -> None:
        """Add the readings of one good poll. `hold`: longest time between two polls that still joins them, s."""
        second = int(at)
        joined = self._last_good is not None and second - self._last_good <= hold
        fill_from = self._last_good + 1 if joined and self._last_good is not None else None
        for name, value in values.items():
            series = self._series.setdefault(name, Series(self._size))
            series.put(second, value, fill_from=fill_from)
        self._last_good = second

    def lost(self) -> None:
        """A poll failed: what comes next is not joined to what was before."""
        self._last_good = None

    def window(self, name: str, *, end: float, seconds: int, points: int) -> list[float | None]:
        """The last `seconds` up to `end` as `points` maxima, oldest first; a point without readings is None.

        Points lie on a fixed grid of seconds, so that a picture moves only when a point is complete.
        """
        series = self._series.get(name)
        if series is None or points < 1:
            return [None] * max(points, 0)
        step = max(1, math.ceil(seconds / points))
        last = int(end) // step
        return [
            self._peak(series, slot * step, step) for slot in range(last - points + 1, last + 1)
        ]

    @staticmethod
    def _peak(series: Series, start: int, step: int) -> float | None:
        values = [
            value
            for second in range(start, start + step)
            if (value := series.get(second)) is not None
        ]
        return max(values) if values else None

    def latest(self, name: str) -> float | None:
        series = self._series.get(name)
        return None if series is None or series.newest is None else series.get(series.newest)

    def rise(self, name: str, *, end: float, seconds: int) -> float | None:
        """How much a counter rose in the last `seconds`; None without two readings. A reset counts as none."""
        series = self._series.get(name)
        if series is None:
            return None
        window = (series.get(second) for second in range(int(end) - seconds, int(end) + 1))
        values = [value for value in window if value is not None]
        return max(0.0, values[-1] - values[0]) if len(values) > 1 else None


def readings(snapshot: NodeSnapshot) -> dict[str, float | None]:
    """The readings of a snapshot that are kept as series. Not exposed, or too few samples, is None."""
    values: dict[str, float | None] = {}
    if isinstance(snapshot.kv, Known):
        kv = snapshot.kv.value
        values |= {
            "kv_usage": kv.usage_ratio,
            "preemptions": kv.preemptions,
            "evictions": kv.evictions,
        }
    if isinstance(snapshot.queue, Known):
        values |= {"running": snapshot.queue.value.running, "waiting": snapshot.queue.value.waiting}
    if isinstance(snapshot.latency, Known):
        latency = snapshot.latency.value
        values |= {"ttft_p50": latency.ttft.p50, "ttft_p95": latency.ttft.p95}
        values |= {"itl_p50": latency.inter_token.p50, "itl_p95": latency.inter_token.p95}
    if isinstance(snapshot.traffic, Known):
        values["generation_rate"] = snapshot.traffic.value.generation_tokens_per_second
    return values

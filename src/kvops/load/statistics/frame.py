"""The requests of a run as columns, for what looks at all of them at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvops.load.records import RequestRecord
from kvops.load.statistics.goodput import value_of
from kvops.load.statistics.percentiles import LEAST_SAMPLES, Values, rank


class Frame:
    """All but those cut off by the run's end, in the order of sending. What a request has not is NaN."""

    def __init__(self, records: Sequence[RequestRecord]) -> None:
        ended = sorted(
            (record for record in records if not record.cancelled), key=lambda record: record.t_send
        )
        self.sent = _column([record.t_send for record in ended])
        """Unix seconds."""
        self.wanted = _column([record.t_intended or record.t_send for record in ended])
        self.closed = self.sent + _column([record.e2e for record in ended])
        self.failed = np.array([record.failed for record in ended], dtype=bool)
        self.ttft = _column([_of_success(record, "ttft") for record in ended])
        """As a user waits: from the wanted send in an open loop."""
        self.e2e = _column([_of_success(record, "e2e") for record in ended])
        self.prompt = _column([record.prompt_tokens for record in ended])
        self.cached = _column([record.cached_tokens for record in ended])

    def __len__(self) -> int:
        return len(self.sent)

    @property
    def in_flight(self) -> Values:
        """Requests under way when each was sent, itself among them."""
        begun = np.arange(1, len(self) + 1, dtype=np.float64)
        return begun - np.searchsorted(np.sort(self.closed), self.sent, side="left")


def grouped_quantiles(
    groups: Sequence[Values], shares: Sequence[float] = (0.50, 0.95)
) -> dict[float, list[float]]:
    """Of each group the percentiles that it has samples for; NaN elsewhere and where a failure (infinity) stands."""
    found: dict[float, list[float]] = {share: [] for share in shares}
    for group in groups:
        ordered = np.sort(group)
        for share in shares:
            enough = len(ordered) >= LEAST_SAMPLES[share]
            value = float(ordered[rank(len(ordered), share)]) if enough else np.nan
            found[share].append(value if np.isfinite(value) else np.nan)
    return found


def _of_success(record: RequestRecord, measure: str) -> float | None:
    return value_of(record, measure) if record.expected else None


def _column(values: Sequence[float | None]) -> Values:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)

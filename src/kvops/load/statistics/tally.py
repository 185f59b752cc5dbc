"""Counts of a run that goes on: each record is looked at once, however often somebody asks."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from kvops.load.records import RequestRecord
from kvops.load.statistics.percentiles import Series, series


class Tally:
    def __init__(self) -> None:
        self.requests = 0
        self.failed = 0
        self._ttfts = array("d")

    def take(self, records: Sequence[RequestRecord]) -> None:
        """All records so far, those taken before among them."""
        for record in records[self.requests :]:
            self.failed += record.failed
            if record.expected and record.ttft is not None:
                self._ttfts.append(record.ttft)
        self.requests = len(records)

    @property
    def ttft(self) -> Series:
        return series(np.array(self._ttfts), self.failed)

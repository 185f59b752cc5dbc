"""One row a request, for a spreadsheet or a notebook. Missing is an empty cell, never 0."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kvops.load.records import RequestRecord
from kvops.load.statistics import tpot

_PLAIN = (
    "run", "scenario", "name", "group", "seq", "worker", "user", "t_intended", "t_send", "lateness", "connect",
    "ttft", "scheduled_ttft", "first_content", "last", "e2e", "asked_input", "prompt_tokens", "cached_tokens",
    "truncated_tokens", "asked_output", "completion_tokens", "counted_tokens", "status", "finish_reason", "expected",
    "failed", "cancelled", "error_class", "error",
)  # fmt: skip
_NEEDLE = ("found", "length", "depth", "actual_depth", "needle_at", "repeat")
COLUMNS = (*_PLAIN, "tpot", "gaps", "gap_mean", "gap_max", *(f"needle_{name}" for name in _NEEDLE))
"""Times in seconds, moments in Unix seconds; `gap_*` of the gaps between deltas with tokens."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A text that begins so is run by spreadsheets (OWASP, CSV injection)."""


def render(records: Sequence[RequestRecord]) -> bytes:
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow(COLUMNS)
    writer.writerows(map(_row, records))
    return file.getvalue().encode()


def _row(record: RequestRecord) -> list[Any]:
    return [_cell(value) for value in _values(record)]


def _values(record: RequestRecord) -> Iterator[Any]:
    for name in _PLAIN:
        yield getattr(record, name)
    yield tpot(record)
    yield from (
        (len(record.itl), float(np.mean(record.itl)), max(record.itl))
        if record.itl
        else (0, None, None)
    )
    for name in _NEEDLE:
        yield None if record.needle is None else getattr(record.needle, name)


def _cell(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value

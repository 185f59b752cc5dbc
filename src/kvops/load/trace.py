"""A recorded course of requests, to be replayed: a CSV with the columns `time`, `input_tokens`, `output_tokens`."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from kvops.errors import UsageError
from kvops.paths import open_regular

COLUMNS = ("time", "input_tokens", "output_tokens")
MAX_TOKENS = 10_000_000
MAX_BYTES = 256 * 2**20
MAX_FAULTS = 5
_FORM = (
    "a CSV with the header time,input_tokens,output_tokens: seconds in order, whole numbers from 1"
)


class Row(msgspec.Struct, frozen=True):
    time: float
    """Seconds from the first request of the trace."""
    input_tokens: int
    output_tokens: int


def read(path: str | Path) -> list[Row]:
    """Further columns are left alone. Raises UsageError that names each fault of the file with its line."""
    try:
        with open_regular(Path(path)) as file:
            if os.fstat(file.fileno()).st_size > MAX_BYTES:
                raise UsageError(f"--trace {path} is over {MAX_BYTES} bytes", hint="cut it")
            text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
            return _rows(csv.DictReader(text, restval=""), str(path))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"cannot read --trace {path}: {reason}", hint=f"it is {_FORM}") from error


def _rows(lines: csv.DictReader[str], path: str) -> list[Row]:
    missing = [name for name in COLUMNS if name not in (lines.fieldnames or ())]
    if missing:
        raise UsageError(
            f"--trace {path}, line 1: no column {', '.join(missing)}", hint=f"it is {_FORM}"
        )
    rows: list[Row] = []
    faults: list[str] = []
    before = -math.inf
    for line in lines:
        found = list(_faults(line, before))
        if found:
            faults.append(f"line {lines.line_num}: {', '.join(found)}")
            continue
        before = float(line["time"])
        rows.append(Row(before, int(line["input_tokens"]), int(line["output_tokens"])))
    if faults:
        more = f"; and {len(faults) - MAX_FAULTS} more" if len(faults) > MAX_FAULTS else ""
        raise UsageError(
            f"--trace {path}: {'; '.join(faults[:MAX_FAULTS])}{more}", hint=f"it is {_FORM}"
        )
    if not rows:
        raise UsageError(f"--trace {path} holds no request", hint=f"it is {_FORM}")
    first = rows[0].time
    return [Row(row.time - first, row.input_tokens, row.output_tokens) for row in rows]


def _faults(line: dict[str, str], before: float) -> Iterator[str]:
    try:
        time = float(line["time"])
        if not math.isfinite(time):
            yield f"time {line['time']} is no moment"
        elif time < before:
            yield f"time {line['time']} is before the line above"
    except ValueError:
        yield f"time {line['time'][:40]!r} is not a number"
    for name in COLUMNS[1:]:
        try:
            if not 1 <= int(line[name]) <= MAX_TOKENS:
                yield f"{name} {line[name]} is out of bounds"
        except ValueError:
            yield f"{name} {line[name][:40]!r} is not a whole number"

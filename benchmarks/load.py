"""The load generator and the gate: the client's own cost and truth, the analysis of a large run, the gate's length."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import analysis, gate, load_client
from benchmarks.table import Row


def measure() -> Iterator[Row]:
    yield from load_client.table()
    yield from analysis.rows()
    yield from gate.rows()

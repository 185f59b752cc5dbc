"""What the load client itself costs and how true its times are, against a server that knows when it sent what."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.table import Row
from benchmarks.truth import STREAM_SECONDS
from kvops.load import launcher, runs, scenarios
from kvops.load.pacing import Pacing
from kvops.load.records import read_client, read_records
from kvops.telemetry.targets import Target

SCENARIO = Path(__file__).parent / "scenarios" / "streams.yaml"
SECONDS = 20.0
SETTLING = 3.0
"""Seconds at the start, until all streams are there, that the client's CPU is not read."""


@contextmanager
def truth() -> Iterator[str]:
    """The URL of the server."""
    command = [sys.executable, "-m", "benchmarks.truth"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.terminate()


def table() -> Iterator[Row]:
    yield from (ttft_row(64), cpu_row(32))


def ttft_row(streams: int) -> Row:
    """Of each stream: the client's first-token time less the server's own, from receiving to sending."""
    with tempfile.TemporaryDirectory() as folder, truth() as url:
        run = _drive(url, streams, Path(folder))
        with urllib.request.urlopen(url + "/truth") as reply:
            told = json.load(reply)
        off = [
            abs(record.ttft - (told[record.group][1] - told[record.group][0])) * 1000
            for record in read_records(run.folder)
            if record.ttft is not None and record.expected
        ]
    return Row(
        what=f"first-token time at {streams} streams of 50 tokens/s",
        measured=f"p50 {_at(off, 0.5):.2f} ms, p99 {_at(off, 0.99):.2f} ms, worst {max(off):.2f} ms of {len(off)}",
        against="the server's own time from receiving to sending",
        value=_at(off, 0.99),
        bar=2.0,
        at_least=False,
        unit=" ms",
    )


def cpu_row(streams: int) -> Row:
    with tempfile.TemporaryDirectory() as folder, truth() as url:
        run = _drive(url, streams, Path(folder))
        samples = [
            sample.cpu * 100
            for sample in read_client(run.folder)
            if sample.at > run.info.started_at + SETTLING and sample.in_flight >= streams * 0.9
        ]
    mean = sum(samples) / len(samples)
    return Row(
        what=f"client CPU at {streams} streams of 50 tokens/s",
        measured=f"mean {mean:.0f} %, highest second {max(samples):.0f} %, {len(samples)} seconds",
        against="one core",
        value=mean,
        bar=30.0,
        at_least=False,
        unit=" %",
    )


def _drive(url: str, streams: int, out: Path) -> runs.Run:
    """So many streams at any moment, each begun when one has ended, evenly over the time."""
    pacing = Pacing(kind="constant", rate=streams / STREAM_SECONDS)
    plan = launcher.Plan(
        scenario=scenarios.read(SCENARIO), target=Target(name="truth", url=url), options={}, users=1,
        duration=SECONDS, seed=0, out=out, pacing=pacing,
    )  # fmt: skip
    return launcher.run(plan, lambda _: None, threading.Event())


def _at(values: list[float], share: float) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

"""How long a kept load run takes to be read, summed up, judged and reported, and how much memory.

The run is made up: so many requests with so many gaps each, with the samples of client and node beside them. It is
analysed in a fresh process, imports included, as `kvops load show --html` would.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.table import Row
from kvops.load import runs, scenarios
from kvops.load.pacing import Pacing
from kvops.load.records import (
    CLIENT_FILE,
    REQUESTS_FILE,
    SERVER_FILE,
    ClientSample,
    ErrorClass,
    RequestRecord,
    ServerSample,
)

REQUESTS = 100_000
GAPS = 64
RATE = 100.0
"""Requests a second."""
START = 1_790_000_000.0
FAILED = 0.002
SECONDS_BAR = 5.0
MEMORY_BAR = 500.0
"""MB of 10^6 bytes."""
_ANALYSE = """
import json, resource, sys, time
begun = time.perf_counter()
from pathlib import Path
from kvops.load import runs, scenarios
from kvops.load.reports import base, files, summary
data = base.read(runs.load(Path(sys.argv[1])))
files.write(data, summary.analyse(data))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"seconds": time.perf_counter() - begun, "cpu": time.process_time(), "peak": peak}))
"""


def rows() -> Iterator[Row]:
    """Raises RuntimeError where the reports are not there in the end."""
    with tempfile.TemporaryDirectory(prefix="kvops-bench-") as folder:
        made = make_run(Path(folder), REQUESTS, GAPS)
        size = sum(file.stat().st_size for file in made.folder.iterdir()) / 1e6
        told = analyse(made.folder)
    what = f"{REQUESTS} requests of {GAPS} gaps, {size:.0f} MB on disk"
    seconds, peak = told["seconds"], told["peak"] / 1e6
    title = "a run read, judged and reported (JSON, HTML)"
    yield Row(
        title,
        f"{seconds:.2f} s, {told['cpu']:.2f} s of CPU",
        what,
        seconds,
        SECONDS_BAR,
        False,
        " s",
    )
    yield Row("its peak of memory", f"{peak:.0f} MB", what, peak, MEMORY_BAR, False, " MB")


def analyse(folder: Path) -> dict[str, float]:
    """Seconds and peak bytes of a fresh process that writes the reports into the run's folder."""
    done = subprocess.run(
        [sys.executable, "-c", _ANALYSE, str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode or not (folder / "report.html").stat().st_size:
        raise RuntimeError(f"the run could not be analysed: {done.stderr[-500:]}")
    told: dict[str, float] = json.loads(done.stdout)
    return told


def make_run(parent: Path, requests: int, gaps: int, seed: int = 1) -> runs.Run:
    """A run folder under `parent` as an open loop of `requests` would leave it."""
    scenario = scenarios.find("chat_online")
    info = runs.RunInfo(
        run="chat_online-20260101T000000Z-abcdef", scenario=scenario.name, report=scenario.report,
        options=scenario.defaults(),
        users=1, duration=requests / RATE, pacing=Pacing(kind="poisson", rate=RATE), seed=seed,
        target="http://127.0.0.1:8000", model="made-up", max_model_len=32_768, started_at=START,
    )  # fmt: skip
    made = runs.create(info, parent)
    random = np.random.default_rng(seed)
    _write(made.folder / REQUESTS_FILE, _records(random, info.run, requests, gaps))
    seconds = range(int(requests / RATE))
    _write(made.folder / CLIENT_FILE, (_client(second) for second in seconds))
    _write(made.folder / SERVER_FILE, (_server(random, second) for second in seconds))
    made.finish("finished")
    info.finished_at = START + requests / RATE
    made.save()
    return made


def _write(path: Path, values: Iterator[msgspec.Struct]) -> None:
    with path.open("wb") as file:
        for value in values:
            file.write(msgspec.json.encode(value) + b"\n")


def _records(
    random: np.random.Generator, run: str, requests: int, gaps: int
) -> Iterator[RequestRecord]:
    at = START + np.cumsum(random.exponential(1 / RATE, requests))
    prompts = random.lognormal(6.5, 0.8, requests).astype(int) + 1
    ttfts = 0.03 + prompts * 6e-5 + random.exponential(0.02, requests)
    for number in range(requests):
        itl = np.round(random.gamma(8, 0.025 / 8, gaps), 6)
        lateness = float(random.exponential(0.001))
        if random.random() < FAILED:
            yield _failed(run, number, float(at[number]), int(prompts[number]))
            continue
        ttft = round(float(ttfts[number]), 6)
        last = round(ttft + float(itl.sum()), 6)
        yield RequestRecord(
            run=run, scenario="chat_online", name="chat", seq=number, user=number % 50,
            t_intended=float(at[number]), t_send=float(at[number]) + lateness, connect=0.0004, ttft=ttft,
            itl=tuple(itl.tolist()), last=last, e2e=last + 0.001, prompt_tokens=int(prompts[number]),
            cached_tokens=0, completion_tokens=gaps + 1, status=200, finish_reason="length", expected=True,
            asked_input=int(prompts[number]), asked_output=gaps + 1, counted_tokens=gaps + 1,
        )  # fmt: skip


def _failed(run: str, number: int, at: float, prompt: int) -> RequestRecord:
    return RequestRecord(
        run=run, scenario="chat_online", name="chat", seq=number, user=number % 50, t_intended=at, t_send=at,
        e2e=0.004, status=429, error_class=ErrorClass.HTTP_429, error="the queue is full", expected=False,
        asked_input=prompt,
    )  # fmt: skip


def _client(second: int) -> ClientSample:
    return ClientSample(
        at=START + second, users=1, in_flight=int(RATE * 1.7), cpu=0.3, lag=0.002, late=0.004
    )


def _server(random: np.random.Generator, second: int) -> ServerSample:
    used = int(3000 + 400 * np.sin(second / 40) + random.normal(0, 60))
    return ServerSample(
        at=START + second, state="ready", running=170, waiting=int(random.poisson(3)), kv_total=5000,
        kv_used=used, kv_cached=5000 - used - 500, kv_usage=used / 5000, memory_used=0.8,
        prompt_tokens=second * 80_000, generation_tokens=int(second * RATE * (GAPS + 1)),
        requests=int(second * RATE), rejections=0, preemptions=second // 100, evictions=0,
    )  # fmt: skip

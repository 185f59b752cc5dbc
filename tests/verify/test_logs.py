"""What in a log counts as a fault, when it was written, and what makes a storm."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kvops.telemetry.targets import Target
from kvops.verify.api import Api
from kvops.verify.check import Finding, Outcome
from kvops.verify.checks.log_prompts import Canaries
from kvops.verify.checks.logs import LogParameters, StormWatch, clean, fault_of, skeleton
from kvops.verify.context import Context
from kvops.verify.facts import Facts
from kvops.verify.logfiles import Line, time_of


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("INFO 11-30 20:04:06 [loader.py:1] Loading weights took 3.2 seconds", None),
        ("ERROR 11-30 20:04:06 [core.py:12] Failed to load model weights", "load failure"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "allocation error"),
        ("ValueError: No available memory for the cache blocks.", "allocation error"),
        ("Traceback (most recent call last):", "traceback"),
        ("EngineCore_0 died unexpectedly", "engine death"),
        ("[2026-11-30 20:04:06] ERROR something else", "error"),
        ("2026-11-30T20:04:06Z INFO request done: no error", None),
        (json.dumps({"event": "allocation_failed", "level": "error"}), "allocation error"),
        (json.dumps({"event": "engine_lost", "level": "error"}), "engine death"),
        (json.dumps({"event": "stream_failed", "level": "error"}), "error stream_failed"),
        (json.dumps({"event": "request", "level": "info", "error": "out of memory"}), None),
        ("{not json", None),
        ("", None),
    ],
)
def test_a_line_is_a_fault_or_it_is_not(line: str, kind: str | None) -> None:
    assert fault_of(line) == kind


@pytest.mark.parametrize(
    "line",
    [
        '{"event": "ready", "timestamp": "2026-11-30T20:07:27.418934Z"}',
        "2026-11-30T20:07:27.418934Z  INFO router: started",
        "[2026-11-30T20:07:27.418934+00:00] started",
        "2026-11-30T21:07:27,418934+01:00 started",
    ],
)
def test_the_time_of_a_line_is_read_in_the_words_of_many_engines(line: str) -> None:
    assert time_of(line) == pytest.approx(1796069247.418934)


def test_a_time_without_a_zone_is_local_and_one_without_a_year_is_of_this_year() -> None:
    now = datetime.now().replace(microsecond=0)
    assert time_of(f"INFO {now:%m-%d %H:%M:%S} [core.py:1] x") == now.timestamp()
    assert time_of(f"[{now:%Y-%m-%d %H:%M:%S}] x") == now.timestamp()


@pytest.mark.parametrize("line", ["", "no time", "2026-99-99 99:99:99", '{"timestamp": 7}', "{"])
def test_a_line_without_a_time_has_none(line: str) -> None:
    assert time_of(line) is None


def storms(lines: list[Line], most: int) -> list[int]:
    watch = StormWatch(most)
    return [line.number for line in lines if watch.storm_of(line)]


def test_the_same_words_with_other_numbers_within_a_minute_are_a_storm_told_once() -> None:
    lines = [Line(n, f"retrying request {n:08x} in {n} s", float(n)) for n in range(1, 40)]
    assert storms(lines, 30) == [30]


def test_slow_repeats_are_no_storm_and_neither_are_other_lines() -> None:
    slowly = [Line(n, "reconnecting", 10.0 * n) for n in range(100)]
    served = [Line(n, "request done", 0.0) for n in range(100)]
    assert storms(slowly, 30) == storms(served, 30) == []


def test_lines_without_times_are_counted_alone() -> None:
    assert storms([Line(n, "preempted", None) for n in range(1, 31)], 30) == [30]


def test_a_warning_of_kvops_is_one_kind_whatever_its_fields() -> None:
    lines = [
        json.dumps({"event": "alert_not_delivered", "level": "warning", "n": n}) for n in (1, 2)
    ]
    assert skeleton(lines[0]) == skeleton(lines[1]) == "alert_not_delivered"
    assert skeleton(json.dumps({"event": "request", "level": "info"})) is None


def test_what_a_library_says_again_and_again_is_no_storm() -> None:
    line = json.dumps({"event": "said", "level": "warning", "logger": "asyncio"})
    assert skeleton(line) is None


def look(log: Path | None, began: float) -> Outcome:
    async def run() -> Outcome:
        target = Target(name="n", url="http://127.0.0.1:9")
        context = Context(target=target, api=Api(target), node=None, facts=Facts(), began=began)
        try:
            return await clean(context, LogParameters(log_file=None if log is None else str(log)))
        except Finding as finding:
            return finding.outcome
        finally:
            await context.api.aclose()

    return asyncio.run(run())


def stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def test_what_went_wrong_in_the_gate_fails_and_what_did_before_is_a_remark(tmp_path: Path) -> None:
    now = time.time()
    log = tmp_path / "engine.log"
    log.write_text(f"{stamp(now - 600)} ERROR old\n{stamp(now)} INFO fine\n")
    assert look(log, began=now - 60).verdict == "warn"
    with log.open("a") as file:
        file.write(f"{stamp(now)} WARN below\nTraceback (most recent call last):\n")
    failed = look(log, began=now - 60)
    assert (failed.verdict, failed.evidence["faults"][0]["line"]) == ("fail", 4)
    assert "since the gate began: 1 × traceback" in str(failed.observed)


def test_faults_of_no_known_time_are_a_remark(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("CUDA out of memory\n")
    assert look(log, began=0.0).verdict == "warn"


def test_a_clean_log_passes_and_one_that_is_not_there_is_no_pass(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("all is well\n")
    assert look(log, began=0.0).verdict == "pass"
    assert look(tmp_path / "missing.log", began=0.0).verdict == "skip"
    assert look(None, began=0.0).verdict == "skip"


def test_a_canary_is_found_by_its_name_wherever_it_stands() -> None:
    canaries = Canaries.fresh()
    assert canaries != Canaries.fresh()
    assert canaries.found_in(f"x{canaries.key}y{canaries.model}".encode()) == ["key", "model"]
    assert canaries.found_in(b"canary-prompt-") == []

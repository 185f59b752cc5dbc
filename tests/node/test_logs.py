"""A line that cannot be kept is counted, never raised or printed; an event that floods is held back."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from kvops.config.schema import Logging
from kvops.node import logs
from kvops.node.rotation import RotatedFile
from tests.harness import RunningNode
from tests.node.conftest import HTTP, eventually


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    hooks = threading.excepthook, sys.unraisablehook
    yield
    threading.excepthook, sys.unraisablehook = hooks
    logging.captureWarnings(False)
    for handler in root.handlers:
        if isinstance(handler, logs.NodeLog):
            handler.close()
    root.handlers = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def test_lines_over_a_full_disk_are_counted_and_nothing_is_printed(tmp_path: Path) -> None:
    """A bound on the file's size stands for the disk: the write fails half-way, in a process of its own."""
    program = (
        "import logging, resource, signal, sys\n"
        "from pathlib import Path\n"
        "import structlog\n"
        "from kvops.node import logs\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "logs.log_to(Path(sys.argv[1]))\n"
        "log = structlog.get_logger('kvops.t')\n"
        "log.info('before')\n"
        "assert logs.flush()\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200, resource.RLIM_INFINITY))\n"
        "for at in range(10): log.info('full', at=at)\n"
        "assert logs.flush()\n"
        "lost = logs.dropped()\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)\n"
        "log.info('after')\n"
        "assert logs.flush()\n"
        "print(lost, logs.dropped())\n"
    )
    file = tmp_path / "node.log"
    done = subprocess.run(
        [sys.executable, "-c", program, str(file)], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert done.stderr == ""
    lost, in_the_end = map(int, done.stdout.split())
    assert lost == in_the_end
    whole = [json.loads(line)["event"] for line in file.read_text().splitlines() if line[-1] == "}"]
    assert whole[0] == "before"
    assert whole[-1] == "after"
    assert lost == 10 - whole.count("full") > 5


def test_an_event_that_floods_is_held_back_and_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "LINES_PER_WINDOW", 5)
    file = tmp_path / "node.log"
    logs.log_to(file)
    log = structlog.get_logger("kvops.t")
    for at in range(20):
        log.info("flood", at=at)
        logging.getLogger("library").error("accept failed for %s", at)
    log.info("rare")
    assert logs.flush(60)
    events = [json.loads(line)["event"] for line in file.read_text().splitlines()]
    assert events.count("flood") == 5
    assert len([event for event in events if event.startswith("accept failed")]) == 5
    assert events[-1] == "rare"
    assert logs.dropped() == 30
    (handler,) = logging.getLogger().handlers
    assert isinstance(handler, logs.NodeLog)
    monkeypatch.setattr(handler._flood, "_seconds", 0.0)
    log.info("flood")
    assert logs.flush(60)
    events = [json.loads(line)["event"] for line in file.read_text().splitlines()]
    assert events[-2:] == ["15 lines held back: flood", "flood"]


def written(file: Path) -> list[dict[str, Any]]:
    assert logs.flush(60)
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_the_level_is_kvops_own_and_changes_at_once(tmp_path: Path) -> None:
    file = tmp_path / "node.log"
    logs.log_to(file, Logging(level="debug"))
    log, library = structlog.get_logger("kvops.t"), logging.getLogger("library")
    log.debug("one")
    library.info("a library is heard from warnings on")
    logs.set_level("error")
    log.warning("two")
    logs.set_level("info")
    log.info("three")
    assert [line["event"] for line in written(file)] == ["one", "three"]


def test_no_value_of_a_library_or_an_exception_is_logged(tmp_path: Path) -> None:
    file = tmp_path / "node.log"
    logs.log_to(file)
    library = logging.getLogger("library")
    library.warning("cannot use %s", "a secret")
    library.warning("made of a secret")
    try:
        raise ValueError("with a secret")
    except ValueError as error:
        library.exception("failed")
        structlog.get_logger("kvops.t").exception("ours_failed")
        loop = asyncio.new_event_loop()
        logs.on_loop_failure(loop, {"message": "a secret", "exception": error})
        loop.close()

    def fails() -> None:
        raise KeyError("in a secret thread")

    thread = threading.Thread(target=fails)
    thread.start()
    thread.join()
    lines = written(file)
    assert "secret" not in json.dumps(lines)
    assert lines[0]["event"].startswith("cannot use %s [library test_logs.py:")
    errors = [line for line in lines if "error" in line]
    assert [(line["event"].split()[0], line["error"]) for line in errors] == [
        ("said", "ValueError"),
        ("ours_failed", "ValueError"),
        ("loop_failure", "ValueError"),
        ("uncaught", "KeyError"),
    ]
    assert all(line["frames"][-1].startswith("test_logs.py:") for line in errors)


def test_all_files_of_a_node_stay_within_one_bound(tmp_path: Path) -> None:
    bounds = Logging(max_bytes=2**16, total_bytes=2**18)
    file, engine = tmp_path / "node.log", tmp_path / "engine.log"
    logs.log_to(file, bounds)
    logs.keep(engine, b"")
    log = structlog.get_logger("kvops.t")
    most = 0
    for at in range(800):
        log.info(f"line {at}", filling="." * 1000)
        logs.keep(engine, b"%d " % at + b"," * 500 + b"\n")
        if at % 50 == 0:
            assert logs.flush(60)
            most = max(most, sum(each.stat().st_size for each in tmp_path.iterdir()))
    assert logs.flush(60)
    files = {each.name: each.stat().st_size for each in tmp_path.iterdir()}
    assert 2**17 < most <= bounds.total_bytes
    assert sum(files.values()) <= bounds.total_bytes
    assert max(files.values()) <= bounds.max_bytes
    assert {"node.log", "node.log.1", "engine.log"} <= set(files)
    assert logs.dropped() == 0
    assert b"799 " in engine.read_bytes()


def test_a_disk_that_hangs_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe without a reader blocks its writer, as such a disk does."""
    monkeypatch.setattr(logs, "QUEUE_BYTES", 100_000)
    file = tmp_path / "node.log"
    reading, writing = os.pipe()
    monkeypatch.setattr(RotatedFile, "append", lambda self, data: os.write(writing, data) < 0)
    logs.log_to(file)
    log = structlog.get_logger("kvops.t")
    for at in range(900):
        log.info(f"line {at}", filling="." * 1000)
    assert logs.dropped() > 0
    assert not logs.flush(0.01)
    os.close(reading)  # now each write fails
    assert logs.flush(60)
    os.close(writing)
    assert logs.dropped() > 700


def test_what_is_lost_is_a_metric(tiny_node: RunningNode) -> None:
    """The node is shared, so what others lost counts too. A bound on its files' size stands for a full disk."""
    pid, before = tiny_node.process.pid, lost(tiny_node)
    unbounded = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, unbounded[1]))
    try:
        assert tiny_node.control("POST", "/control/flush").status_code == 200
        eventually(lambda: lost(tiny_node) > before, "a lost line is counted", 60)
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, unbounded)
    assert tiny_node.control("POST", "/control/flush").status_code == 200
    eventually(lambda: '"flushed"' in last_line(tiny_node), "the log goes on", 60)


def last_line(node: RunningNode) -> str:
    return log_file(node).read_text().rstrip("\n").rpartition("\n")[2]


def log_file(node: RunningNode) -> Path:
    return node.home / "state" / "nodes" / node.name / "node.log"


def lost(node: RunningNode) -> float:
    page = HTTP.get(f"{node.url}/metrics").text
    (value,) = re.findall(r"^kvops_log_dropped_total (\S+)$", page, re.MULTILINE)
    return float(value)


def test_that_clients_hang_up_fills_no_log_and_loses_no_lines(tmp_path: Path) -> None:
    file = tmp_path / "node.log"
    logs.log_to(file)
    for _ in range(1000):
        logging.getLogger("asyncio").warning("socket.send() raised exception.")
    logging.getLogger("asyncio").warning("something else")
    assert logs.flush()
    assert logs.dropped() == 0
    (line,) = file.read_text().splitlines()
    assert "asyncio" in line

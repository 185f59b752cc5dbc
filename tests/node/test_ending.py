"""The end of a node has a bound of its own: no thread and no task can hold its process."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvops.node.ending import TASKS_SECONDS, THREADS_SECONDS
from tests.harness import start_node

MARGIN = 20.0
"""For a busy machine."""

THREAD = "asyncio.get_running_loop().run_in_executor(None, time.sleep, 1000)"
TASK = "asyncio.create_task(stays())"
PROGRAM = """
import asyncio, sys, time
from kvops.errors import EngineDied
from kvops.node.ending import ends_in_time, run

async def stays():
    while True:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            pass

async def main():
    held = {held}
    await asyncio.sleep(0.1)
    {end}

with ends_in_time():
    try:
        run(main())
    finally:
        print("flushed", flush=True)
"""


@pytest.mark.parametrize(("end", "code"), [("pass", 0), ("raise EngineDied('it is gone')", 1)])
@pytest.mark.parametrize("held", [THREAD, TASK, f"[{THREAD}, {TASK}]"])
def test_what_never_ends_does_not_hold_the_process(held: str, end: str, code: int) -> None:
    began = time.monotonic()
    program = PROGRAM.replace("{held}", held).replace("{end}", end)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == code, done.stderr
    assert done.stdout == "flushed\n"
    assert time.monotonic() - began < TASKS_SECONDS + THREADS_SECONDS + MARGIN
    assert ("ended without waiting for: asyncio_0" in done.stderr) == (THREAD in held)


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a receiver that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_chat_that_never_answers_does_not_hold_a_node(
    silent: int, tiny_model: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "chat.url").write_text(f"json://127.0.0.1:{silent}/?rto=600&cto=600")
    (home / "chat.url").chmod(0o600)
    settings: dict[str, object] = {
        "model": {"name": str(tiny_model)},
        "kv_cache": {"blocks": 64},
        "runtime": {"threads": 1},
        "alerts": {
            "interval": "500ms",
            "channels": {
                "chat": {"kind": "apprise", "url_file": str(home / "chat.url"), "timeout": "1s"}
            },
        },
    }
    node = start_node(home, settings, name="chatty")
    told = node.kvops("alerts", "test", "--node", "chatty", timeout=60)
    assert told.returncode != 0, "the receiver answered: this shows nothing"
    began = time.monotonic()
    assert node.stop() == 0
    assert time.monotonic() - began < MARGIN
    assert "ended without" not in node.log.read_text()

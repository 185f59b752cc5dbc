"""Every command of the README, in its order, on a machine of one's own: what a newcomer types works as printed."""

from __future__ import annotations

import os
import pty
import re
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import REPO
from tests.tiny import make_tiny_model

BIN = Path(sys.executable).parent
COVERED_ELSEWHERE = {
    "scripts/demo": "tests/cli/test_demo.py",
    "scripts/test": "is what runs this",
}


def commands() -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", (REPO / "README.md").read_text(), re.S)
    return [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]


@pytest.fixture
def newcomer(
    tmp_path: Path, default_model_home: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A home without nodes, the model store shared, and a model folder to bring along."""
    if _taken(8000) or _taken(8001):
        pytest.skip(
            "ports 8000 and 8001 are in use on this machine: the README's commands need them"
        )
    make_tiny_model(tmp_path / "folder-in-hf-layout")
    home = tmp_path / "home"
    home.mkdir()
    (home / "data").symlink_to(default_model_home / "data")
    monkeypatch.setenv("KVOPS_HOME", str(home))
    monkeypatch.setenv("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}")
    yield tmp_path
    subprocess.run([BIN / "kvops", "node", "stop"], check=False, capture_output=True)
    subprocess.run(
        [BIN / "kvops", "model", "remove", "mine", "--yes"], check=False, capture_output=True
    )


@pytest.mark.model
def test_every_command_of_the_readme_works(newcomer: Path) -> None:
    for command in commands():
        if command in COVERED_ELSEWHERE:
            assert (REPO / command).exists()
        elif command == "kvops tui":
            _open_and_leave_console(newcomer)
        else:
            done = subprocess.run(
                command, shell=True, cwd=newcomer, capture_output=True, text=True, timeout=300
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def _open_and_leave_console(folder: Path) -> None:
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update({"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "35"})
        os.chdir(folder)
        os.execv(BIN / "kvops", ["kvops", "tui"])
    seen, deadline = b"", time.monotonic() + 30
    while b"smollm2" not in seen and time.monotonic() < deadline:
        if select.select([terminal], [], [], 1)[0]:
            seen += os.read(terminal, 65536)
    os.write(terminal, b"q")
    assert b"smollm2" in seen
    assert _exit_code(child, terminal, deadline) == 0


def _exit_code(child: int, terminal: int, deadline: float) -> int:
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                os.read(terminal, 65536)
            except OSError:
                continue
    os.kill(child, 9)
    raise AssertionError("the console did not end on q")


def _taken(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0

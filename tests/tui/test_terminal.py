"""The console in a real terminal (tmux): keys, sizes, a node that dies and returns, and a terminal that goes away."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.harness import RunningNode, start_node

pytestmark = [
    pytest.mark.terminal,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed"),
]
DEADLINE = 60.0
CONSOLE = [sys.executable, "-m", "kvops.cli", "tui", "--rate", "0.5"]


@dataclass
class Terminal:
    """One tmux server of its own, with one window that runs the console."""

    socket: str
    env: dict[str, str]

    def tmux(self, *args: str) -> str:
        command = ["tmux", "-L", self.socket, *args]
        return subprocess.run(
            command, env=self.env, capture_output=True, text=True, timeout=20
        ).stdout

    def start(self, *args: str) -> psutil.Process:
        return self.run(*CONSOLE, *args)

    def run(self, *command: str) -> psutil.Process:
        self.tmux(
            "-f", "/dev/null", "new-session", "-d", "-s", "kvops", "-x", "120", "-y", "35", *command
        )
        return psutil.Process(int(self.tmux("display-message", "-p", "-t", "kvops", "#{pane_pid}")))

    def screen(self) -> str:
        return self.tmux("capture-pane", "-p", "-t", "kvops")

    def keys(self, *keys: str) -> None:
        self.tmux("send-keys", "-t", "kvops", *keys)

    def see(self, *wanted: str, absent: str | None = None) -> str:
        def there() -> bool:
            text = self.screen()
            return all(word in text for word in wanted) and (absent is None or absent not in text)

        assert eventually(there), f"never saw {wanted} (without {absent!r}):\n{self.screen()}"
        return self.screen()


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


@pytest.fixture
def node(tiny_model: Path, tmp_path: Path) -> Iterator[RunningNode]:
    running = start_tiny(tiny_model, tmp_path)
    yield running
    running.stop()


def start_tiny(model: Path, home: Path) -> RunningNode:
    settings = {
        "model": {"name": str(model)},
        "kv_cache": {"blocks": 64},
        "runtime": {"threads": 1},
    }
    return start_node(home / "kvops", settings, name="tiny")


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    env = {
        name: value for name, value in os.environ.items() if not name.startswith(("KVOPS_", "TMUX"))
    }
    env |= {"KVOPS_HOME": str(tmp_path / "kvops"), "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
    terminal = Terminal(f"kvops-{uuid.uuid4().hex[:8]}", env)
    yield terminal
    terminal.tmux("kill-server")


def ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_a_day_in_the_life(
    node: RunningNode, terminal: Terminal, tiny_model: Path, tmp_path: Path
) -> None:
    console = terminal.start()
    terminal.see("tiny", "● OK", "KV USED", "0 %", "READ-ONLY", "live")

    terminal.keys("Enter")
    terminal.see("weights", "KV blocks 64", "no request in flight", "TTFT")
    for width, height in ((80, 24), (60, 20), (120, 35)):
        terminal.tmux("resize-window", "-t", "kvops", "-x", str(width), "-y", str(height))
        terminal.see("weights", "KV used", "TTFT", "● OK")

    os.killpg(node.process.pid, signal.SIGKILL)
    node.process.wait()
    text = terminal.see("✕ DOWN", absent="● OK")
    assert "weights" in text
    assert not ended(console)

    again = start_tiny(tiny_model, tmp_path)
    try:
        assert again.url != node.url
        terminal.see("● OK", absent="✕ DOWN")
        terminal.keys("1")
        terminal.see("back after", "lost:")
        terminal.keys("q")
        assert eventually(lambda: ended(console))
    finally:
        again.stop()


def test_without_nodes_it_opens_and_quits_with_ctrl_q(terminal: Terminal) -> None:
    console = terminal.start("--ascii")
    text = terminal.see("no node yet", "0 nodes")
    assert text.isascii()
    terminal.keys("C-q")
    assert eventually(lambda: ended(console))


DEAF = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)"
WATCHING = "from kvops.tui import terminal; terminal.watch_terminal()"


@pytest.mark.parametrize(
    ("command", "sign"),
    [
        ([*CONSOLE, "nobody"], "DOWN"),
        (["sh", "-c", f"trap '' HUP; exec {' '.join(CONSOLE)} nobody"], "DOWN"),
        ([sys.executable, "-c", f"{WATCHING}; {DEAF}; print('up'); signal.pause()"], "up"),
    ],
    ids=["plain", "started deaf to hang-ups", "deaf to hang-ups"],
)
def test_a_closed_terminal_ends_the_process(
    terminal: Terminal, command: list[str], sign: str
) -> None:
    process = terminal.run(*command)
    terminal.see(sign)
    terminal.tmux("kill-session", "-t", "kvops")
    assert eventually(lambda: ended(process))


def test_sigterm_leaves_the_terminal_in_order(terminal: Terminal) -> None:
    terminal.run("sh", "-c", f"{' '.join(CONSOLE)} nobody; stty -a; cat")
    terminal.see("DOWN")
    shell = psutil.Process(
        int(terminal.tmux("display-message", "-p", "-t", "kvops", "#{pane_pid}"))
    )
    shell.children()[0].terminate()
    terminal.see(" icanon", " echo", absent="Fleet")


def test_without_colours_states_keep_their_signs(terminal: Terminal) -> None:
    terminal.env["NO_COLOR"] = "1"
    terminal.start("nobody")
    terminal.see("✕ DOWN", "nobody")
    coloured = terminal.tmux("capture-pane", "-p", "-e", "-t", "kvops")
    shades = {int(shade) for shade in re.findall(r"\x1b\[[34]8;5;(\d+)m", coloured)}
    assert all(shade >= 232 or shade == 16 for shade in shades), shades
    terminal.keys("q")


def test_without_a_terminal_it_says_what_to_use(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "kvops.cli", "tui"],
        env=os.environ | {"KVOPS_HOME": str(tmp_path)}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert result.returncode == 2
    assert "kvops snapshot" in result.stderr

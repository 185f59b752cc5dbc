"""The demo from the outside: real model, real node, and nothing left when it is over."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.harness import KVOPS

pytestmark = pytest.mark.model


@pytest.fixture
def env(default_model_home: Path, tmp_path: Path) -> dict[str, str]:
    """A home with the model in it, and a temporary folder of its own, to see what is left there."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "data").symlink_to(default_model_home / "data")
    (tmp_path / "tmp").mkdir()
    return {"KVOPS_HOME": str(home), "TMPDIR": str(tmp_path / "tmp"), "COLUMNS": "160"}


@pytest.fixture
def demo(env: dict[str, str], tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    out = (tmp_path / "out").open("w")
    process = subprocess.Popen(
        [*KVOPS, "demo"],
        env=os.environ | env,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.STDOUT,
        text=True,
    )
    yield process
    if process.poll() is None:
        process.kill()
    out.close()


def processes_of(env: dict[str, str]) -> list[psutil.Process]:
    """Processes that were started with this test's temporary folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if (
                process.environ().get("TMPDIR") == env["TMPDIR"]
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(process)
        except psutil.Error:
            continue
    return found


def wait_for(condition: object, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_it_verifies_shows_a_snapshot_and_leaves_nothing(
    demo: subprocess.Popen[str], env: dict[str, str], tmp_path: Path
) -> None:
    code = demo.wait(400)
    said = (tmp_path / "out").read_text()
    assert code == 0, said
    assert "every required check passed" in said
    assert "4/4 A snapshot" in said
    assert processes_of(env) == []
    assert list((tmp_path / "tmp").iterdir()) == []
    (result,) = (tmp_path / "home" / "state" / "runs").glob("verify-*/result.json")
    assert str(result.parent.name) in said


@pytest.mark.parametrize(
    ("number", "stage", "processes"),
    [(signal.SIGINT, "3/4 The gate", 3), (signal.SIGTERM, "2/4 A node", 2)],
)
def test_a_signal_in_the_middle_leaves_nothing(
    number: signal.Signals, stage: str, processes: int,
    demo: subprocess.Popen[str], env: dict[str, str], tmp_path: Path,
) -> None:  # fmt: skip
    """With the gate at work, and while the node starts: demo and node, then its engine too."""
    out = tmp_path / "out"
    wait_for(lambda: stage in out.read_text() or demo.poll() is not None, 120)
    wait_for(lambda: len(processes_of(env)) >= processes or demo.poll() is not None, 60)
    demo.send_signal(number)
    assert demo.wait(60) == 128 + number, out.read_text()
    assert processes_of(env) == []
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_demo_that_is_killed_takes_its_node_along(
    demo: subprocess.Popen[str], env: dict[str, str]
) -> None:
    wait_for(lambda: len(processes_of(env)) >= 3 or demo.poll() is not None, 120)
    demo.kill()
    assert demo.wait(60) == -signal.SIGKILL
    wait_for(lambda: processes_of(env) == [], 60)


def test_a_node_that_cannot_start_is_said_and_leaves_nothing(
    env: dict[str, str], tmp_path: Path
) -> None:
    broken = {"PYTHONPATH": str(tmp_path / "path")}
    package = tmp_path / "path" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('torch is broken here')\n")
    done = subprocess.run(
        [*KVOPS, "demo"], env=os.environ | env | broken, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "node_start" in done.stderr
    assert "torch is broken here" in done.stderr
    assert processes_of(env) == []
    assert list((tmp_path / "tmp").iterdir()) == []

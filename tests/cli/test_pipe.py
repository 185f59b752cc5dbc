"""Whose reader leaves ends as SIGPIPE ends a program: 141, never a verdict, never a traceback."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from kvops.testing import serve
from tests.harness import KVOPS


def gone(*args: str, home: Path, stream: str = "stdout") -> subprocess.CompletedProcess[str]:
    """The command with a stream that nobody reads any more; the other is captured."""
    reader, writer = os.pipe()
    os.close(reader)
    other = "stderr" if stream == "stdout" else "stdout"
    try:
        return subprocess.run(
            [*KVOPS, *args], env=os.environ | {"KVOPS_HOME": str(home)}, stdin=subprocess.DEVNULL, text=True,
            timeout=60, **{stream: writer, other: subprocess.PIPE},
        )  # type: ignore[call-overload,no-any-return] # fmt: skip
    finally:
        os.close(writer)


@pytest.mark.parametrize(
    "args",
    [("--help",), ("version",), ("load", "list"), ("load", "list", "--json"), ("load", "runs")],
)
def test_what_is_printed_in_any_way(args: tuple[str, ...], kvops_home: Path) -> None:
    done = gone(*args, home=kvops_home)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("faults", [(), ("wrong_usage",)])
def test_a_verdict_that_nobody_reads_is_on_disk(faults: tuple[str, ...], kvops_home: Path) -> None:
    with serve(*faults) as node:
        done = gone("verify", "--node", node.url, "--only", "resp.short", home=kvops_home)
    assert done.returncode == 141
    assert "Traceback" not in done.stderr
    assert len(list(kvops_home.glob("state/runs/verify-*/result.json"))) == 1


def test_errors_that_nobody_reads(kvops_home: Path) -> None:
    done = gone("load", "show", home=kvops_home, stream="stderr")
    assert (done.returncode, done.stdout) == (141, "")

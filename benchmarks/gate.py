"""How long the gate takes on the default model, and whether it lets the healthy node through."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.node import KVOPS, Node, pull_default_model, running_node
from benchmarks.table import Row

BARS = {"smoke": 60.0, "golive": 600.0}
"""Seconds."""
PASSED = (0,)


def rows() -> Iterator[Row]:
    pull_default_model()
    for profile, bar in BARS.items():
        with running_node() as node:
            yield _row(node, profile, bar)


def _row(node: Node, profile: str, bar: float) -> Row:
    file = node.home / f"{profile}.json"
    begun = time.perf_counter()
    done = subprocess.run(
        [*KVOPS, "verify", "--profile", profile, "--json", str(file)],
        env=node.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - begun
    if done.returncode not in PASSED:
        raise SystemExit(f"{profile} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return Row(
        f"kvops verify --profile {profile}",
        f"{seconds:.0f} s",
        _verdicts(file),
        seconds,
        bar,
        False,
        " s",
    )


def _verdicts(file: Path) -> str:
    checks = json.loads(file.read_text())["checks"]
    counts: dict[str, int] = {}
    for check in checks:
        counts[check["verdict"]] = counts.get(check["verdict"], 0) + 1
    return f"{len(checks)} checks: " + ", ".join(f"{n} {v}" for v, n in counts.items())

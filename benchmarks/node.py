"""A node with the default model for a measurement: its own state folder, the model store kept in `.cache`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from kvops.telemetry.snapshot import NodeSnapshot, decode_snapshot

REPO = Path(__file__).parent.parent
MODEL_HOME = REPO / ".cache" / "home"
KVOPS = [sys.executable, "-m", "kvops.cli"]


@dataclass(frozen=True)
class Node:
    home: Path
    url: str
    control_url: str
    token: str
    start_seconds: float
    pid: int
    """Of the daemon."""

    def snapshot(self) -> NodeSnapshot:
        headers = {"Authorization": f"Bearer {self.token}"}
        return decode_snapshot(
            httpx.get(self.control_url + "/control/snapshot", headers=headers).content
        )

    def environment(self) -> dict[str, str]:
        return os.environ | {"KVOPS_HOME": str(self.home)}


def pull_default_model() -> Path:
    """The GGUF file of the default model, pulled if it is missing."""
    environment = os.environ | {"KVOPS_HOME": str(MODEL_HOME)}
    subprocess.run(
        [*KVOPS, "model", "pull", "smollm2-135m"],
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return next((MODEL_HOME / "data" / "models" / "smollm2-135m").glob("*.gguf"))


@contextmanager
def running_node(*arguments: str, settings: dict[str, str] | None = None) -> Iterator[Node]:
    """`settings`: `KVOPS_SECTION__KEY` variables."""
    with tempfile.TemporaryDirectory(prefix="kvops-bench-") as folder:
        home = Path(folder)
        (MODEL_HOME / "cache").mkdir(mode=0o700, exist_ok=True)
        for kept in ("data", "cache"):
            (home / kept).symlink_to(MODEL_HOME / kept)
        environment = os.environ | {"KVOPS_HOME": folder} | (settings or {})
        command = [
            *KVOPS,
            "node",
            "start",
            "--detach",
            "--model",
            "smollm2-135m",
            "--name",
            "bench",
        ]
        command += ["--port", "0", "--control-port", "0", *arguments]
        begun = time.perf_counter()
        subprocess.run(
            command,
            env=environment,
            check=True,
            stdout=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
        )
        seconds = time.perf_counter() - begun
        try:
            yield _describe(home, seconds)
        finally:
            subprocess.run(
                [*KVOPS, "node", "stop", "--node", "bench"],
                env=environment,
                check=False,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # a measurement may have ended it
            )


def _describe(home: Path, seconds: float) -> Node:
    folder = home / "state" / "nodes" / "bench"
    record = json.loads((folder / "node.json").read_text())
    token = (folder / "admin.token").read_text().strip()
    return Node(home, record["url"], record["control_url"], token, seconds, record["pid"])

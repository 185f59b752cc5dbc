"""A real node in a subprocess, for tests: started through the command line, waited for, always ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import httpx
import psutil
import yaml

from kvops.telemetry.snapshot import NodeSnapshot, decode_snapshot
from tests import forked

KVOPS = [sys.executable, "-m", "kvops.cli"]


def run_kvops(
    *args: str, env: dict[str, str], timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Forked from a process with the imports done, but where some of `env` is for Python itself."""
    environment = dict(os.environ) | env
    if forked.can_fork(environment):
        return forked.run(*args, environment=environment, timeout=timeout)
    return subprocess.run(
        [*KVOPS, *args],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


@dataclass
class RunningNode:
    home: Path
    name: str
    process: forked.Process | subprocess.Popen[str]
    log: Path
    url: str = ""
    control_url: str = ""
    token: str = ""
    env: dict[str, str] = field(default_factory=dict)

    def kvops(self, *args: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        return run_kvops(*args, env=self.env, timeout=timeout)

    def control(self, method: str, path: str, **kwargs: object) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token}"}
        return httpx.request(method, self.control_url + path, headers=headers, timeout=30, **kwargs)  # type: ignore[arg-type]

    def snapshot(self) -> NodeSnapshot:
        return decode_snapshot(self.control("GET", "/control/snapshot").content)

    def engine(self) -> psutil.Process:
        """The engine process: the daemon's only child."""
        (child,) = psutil.Process(self.process.pid).children()
        return child

    def stop(self) -> int:
        """SIGTERM, then wait; SIGKILL after 30 s. The exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            return self.process.wait()


def start_node(
    home: Path, settings: dict[str, object], *, name: str = "node", timeout: float = 90
) -> RunningNode:
    """Start a node from a config made of `settings` on free ports. Raises AssertionError with the log if it fails."""
    home.mkdir(parents=True, exist_ok=True)
    config = home / f"{name}.yaml"
    settings = {"name": name, **settings}
    settings["server"] = {"port": 0, "control_port": 0, **settings.get("server", {})}  # type: ignore[dict-item]
    config.write_text(yaml.safe_dump(settings))
    log = home / f"{name}.out"
    env = {"KVOPS_HOME": str(home)}
    with log.open("w") as out:
        process = _started("node", "start", "-c", str(config), env=env, out=out)
    node = RunningNode(home, name, process, log, env=env)
    _wait_ready(node, timeout)
    return node


def _started(
    *args: str, env: dict[str, str], out: TextIO
) -> forked.Process | subprocess.Popen[str]:
    environment = dict(os.environ) | env
    if forked.can_fork(environment):
        return forked.Process(
            *args, environment=environment, out=out.fileno(), err=out.fileno(), own_session=True
        )
    return subprocess.Popen(
        [*KVOPS, *args], env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, text=True,
        start_new_session=True,
    )  # fmt: skip


def _wait_ready(node: RunningNode, timeout: float) -> None:
    from kvops import registry

    deadline = time.monotonic() + timeout
    os.environ["KVOPS_HOME"] = str(node.home)
    try:
        while time.monotonic() < deadline:
            if node.process.poll() is not None:
                raise AssertionError(
                    f"node ended with {node.process.returncode}:\n{node.log.read_text()}"
                )
            record = registry.read(node.name)
            said = "  ready " in node.log.read_text()  # the last line of the report
            if record is not None and said and _is_ready(record.url):
                node.url, node.control_url = record.url, record.control_url
                node.token = registry.token_file(node.name).read_text().strip()
                return
            time.sleep(0.05)
    finally:
        del os.environ["KVOPS_HOME"]
    node.stop()
    raise AssertionError(f"node not ready after {timeout} s:\n{node.log.read_text()}")


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(url + "/readyz", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False

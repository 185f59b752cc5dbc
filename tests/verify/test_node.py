"""The gate against real nodes: everything passes, and a node that dies meanwhile is told apart from a sound one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from kvops.telemetry.snapshot import Known
from tests.harness import KVOPS, RunningNode, start_node


def gate(
    node: RunningNode, tmp_path: Path, *args: str
) -> tuple[int, dict[str, dict[str, object]], str]:
    out = tmp_path / "verify.json"
    done = node.kvops("verify", "--node", node.name, "--json", str(out), *args, timeout=200)
    checks = json.loads(out.read_text())["checks"]
    return done.returncode, {check["id"]: check for check in checks}, done.stdout + done.stderr


def not_passed(checks: dict[str, dict[str, object]]) -> dict[str, object]:
    return {i: (c["verdict"], c["observed"]) for i, c in checks.items() if c["verdict"] != "pass"}


def test_a_real_node_with_a_tiny_model_passes(tiny_node: RunningNode, tmp_path: Path) -> None:
    code, checks, said = gate(tiny_node, tmp_path)
    assert not_passed(checks) == {}, said
    assert (code, len(checks)) == (0, 11)


@pytest.mark.model
def test_the_default_model_passes_and_recalls_the_fact(
    smol_node: RunningNode, tmp_path: Path
) -> None:
    code, checks, said = gate(smol_node, tmp_path)
    assert not_passed(checks) == {}, said
    assert code == 0
    evidence = checks["resp.multi_turn"]["evidence"]
    assert isinstance(evidence, dict)
    assert evidence["recalled"] is True


def in_flight(node: RunningNode) -> int:
    queue = node.snapshot().queue
    assert isinstance(queue, Known)
    return queue.value.running + queue.value.waiting


def test_a_node_killed_in_the_middle_fails_the_run(tiny_model: Path, tmp_path: Path) -> None:
    profile = tmp_path / "long.yaml"
    profile.write_text("schema_version: 1\nname: long\nchecks:\n- {id: resp.short, timeout: 120}\n")
    node = start_node(
        tmp_path / "home", {"model": {"name": str(tiny_model)}, "kv_cache": {"blocks": 128}}
    )
    # A halted engine keeps the check's request in flight for as long as this test needs.
    node.engine().send_signal(signal.SIGSTOP)
    try:
        command = [*KVOPS, "verify", "--node", node.name, "--profile", str(profile), "--json", "-"]
        process = subprocess.Popen(
            command,
            env=os.environ | node.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        deadline = time.monotonic() + 60
        while not in_flight(node):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.05)
        os.killpg(node.process.pid, signal.SIGKILL)
        out, err = process.communicate(timeout=60)
    finally:
        node.stop()
    checks = {check["id"]: check for check in json.loads(out)["checks"]}
    assert process.returncode == 1, err
    assert checks["resp.short"]["verdict"] == "fail"
    assert "connection lost" in str(checks["resp.short"]["observed"])

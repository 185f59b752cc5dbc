"""A step that the device has no memory for is counted, logged and told, and the engine goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvops import failpoints
from kvops.telemetry.snapshot import Known
from tests.harness import RunningNode, start_node
from tests.node.conftest import HTTP, complete, error_of, eventually

RULE = "AllocationFailed"
AFTER_THE_START = 20
"""Steps: the engine takes a few for itself, and the request below takes 90."""
SERIES = "kvops_allocation_failures_total"


def counted(node: RunningNode) -> float:
    lines = HTTP.get(f"{node.url}/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{SERIES} "))


def firing(node: RunningNode) -> list[str]:
    alerts = node.snapshot().alerts
    if not isinstance(alerts, Known):
        return []
    return [alert.rule for alert in alerts.value.active if alert.phase == "firing"]


def test_a_failed_allocation_is_counted_logged_and_told(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(failpoints.VARIABLE, f"engine.allocation.fails@{AFTER_THE_START}")
    settings: dict[str, object] = {
        "model": {"name": str(tiny_model)},
        "runtime": {"threads": 1},
        "alerts": {"interval": "1s"},
    }
    node = start_node(tmp_path / "home", settings, name="short")
    try:
        assert counted(node) == 0, "a series that starts with its first failure hides it"
        eventually(lambda: isinstance(node.snapshot().alerts, Known), "rules are evaluated", 60)
        answer = complete(node, [1, 2, 3], max_tokens=90)
        assert (answer.status_code, error_of(answer)["code"]) == (500, "internal_error")
        assert counted(node) == 1
        traffic = node.snapshot().traffic
        assert isinstance(traffic, Known)
        assert traffic.value.allocation_failures == 1
        eventually(lambda: RULE in firing(node), f"{RULE} fires", 60)
        written = node.kvops("node", "logs", "--node", "short", "--lines", "200").stdout
        assert "allocation_failed" in written
        assert complete(node, [1, 2, 3], max_tokens=5).status_code == 200
        assert counted(node) == 1
    finally:
        assert node.stop() == 0

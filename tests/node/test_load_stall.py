"""An engine that hangs while it loads is seen and ended, at its first start as at each later one; a slow one is not."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path

import httpx
import pytest

from kvops import failpoints
from tests.harness import RunningNode, start_node
from tests.node.conftest import HTTP, complete, eventually, model_of

BOUND = 4.0
"""Long enough for a tiny model's import of torch on a busy machine, which is one step of a load."""
PATIENCE = 90.0


def started(
    home: Path, model: Path, monkeypatch: pytest.MonkeyPatch, *, budget: int = 1
) -> RunningNode:
    """Its engines have the faults that are in `home / faults` when they start."""
    monkeypatch.setenv(failpoints.VARIABLE, f"@{home / 'faults'}")
    settings: dict[str, object] = {
        "model": {"name": str(model)},
        "kv_cache": {"blocks": 64},
        "runtime": {"threads": 1, "load_stall_after": f"{BOUND:g}s"},
        "restart": {"budget": budget, "backoff": "10ms"},
    }
    return start_node(home, settings, name="hangs")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    return home


def livez(node: RunningNode) -> tuple[int, str]:
    answer = HTTP.get(f"{node.url}/livez")
    return answer.status_code, answer.json()["status"]


def stalls(node: RunningNode) -> float:
    lines = HTTP.get(f"{node.url}/metrics").text.splitlines()
    (line,) = [each for each in lines if 'restarts_total{reason="stalled"}' in each]
    return float(line.rsplit(" ", 1)[1])


@pytest.mark.parametrize("fault", ["engine.step.hangs@1", "model.read.short=hang@3"])
def test_a_replacement_that_hangs_is_seen_and_replaced(
    fault: str, home: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = started(home, tiny_model, monkeypatch, budget=2)  # the kill, then the hang
    model_of(node)
    (home / "faults").write_text(fault)
    node.engine().kill()
    eventually(lambda: livez(node) == (503, "stalled"), "the hang is seen", PATIENCE)
    (home / "faults").unlink()
    eventually(lambda: stalls(node) == 1, "it is counted", PATIENCE)
    eventually(lambda: HTTP.get(f"{node.url}/readyz").status_code == 200, "ready again", PATIENCE)
    assert livez(node) == (200, "ready")
    assert complete(node, max_tokens=1).status_code == 200
    assert node.stop() == 0


def test_replacements_that_all_hang_spend_the_budget(
    home: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = started(home, tiny_model, monkeypatch)
    (home / "faults").write_text("engine.step.hangs@1")
    node.engine().kill()
    assert node.process.wait(PATIENCE) == 1
    assert "the engine ended 2 times in 10m 00s, restart.budget allows 1" in node.log.read_text()


def test_a_first_start_that_hangs_is_seen_and_ends_the_node(
    home: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "faults").write_text("engine.step.hangs@1")
    seen: set[tuple[int, str]] = set()
    over = threading.Event()
    watching = threading.Thread(target=watch_livez, args=(home, seen, over))
    watching.start()
    try:
        with pytest.raises(AssertionError) as ended:
            started(home, tiny_model, monkeypatch)
    finally:
        over.set()
        watching.join()
    assert "node ended with 1:" in str(ended.value)
    assert "error [engine_died]: the engine hung while loading" in str(ended.value)
    assert "runtime.load_stall_after" in str(ended.value)
    assert (200, "loading") in seen
    assert (503, "stalled") in seen


def watch_livez(home: Path, seen: set[tuple[int, str]], over: threading.Event) -> None:
    record = home / "state" / "nodes" / "hangs" / "node.json"
    while not over.wait(0.05):
        try:
            url = json.loads(record.read_text())["url"]
            answer = httpx.get(f"{url}/livez", timeout=5, trust_env=False)
            seen.add((answer.status_code, answer.json()["status"]))
        except (OSError, ValueError, httpx.HTTPError):
            continue


def test_a_load_that_is_slow_and_goes_on_is_left_alone(
    home: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "faults").write_text("model.read.short=hang:0.5")
    node = started(home, tiny_model, monkeypatch)
    try:
        loaded = re.search(r"model loaded +.* ([\d.]+) s\n", node.log.read_text())
        assert loaded is not None
        assert float(loaded[1]) > 1.5 * BOUND, (
            "the load was no slower than the bound: this shows nothing"
        )
        assert stalls(node) == 0
        assert "reading weights" not in node.log.read_text()
    finally:
        assert node.stop() == 0

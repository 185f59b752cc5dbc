"""The end of a node: what is in flight is finished or told, within the deadline, and the exit code says how it was."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from kvops.config.load import load_config
from kvops.config.settings import Settings
from kvops.node.restarts import RestartBudget
from tests.harness import RunningNode, run_kvops, start_node
from tests.node.conftest import HTTP, complete, error_of, eventually, in_flight, model_of

STREAMS = 8
PATIENCE = 120.0
CLIENT = httpx.Client(timeout=PATIENCE, trust_env=False)
"""Ready to send at once, so that all streams begin together; each has a connection to itself."""


def started(home: Path, model: Path, **sections: object) -> RunningNode:
    settings: dict[str, object] = {
        "model": {"name": str(model)},
        "kv_cache": {"blocks": 2048},
        "runtime": {"threads": 1},
    }
    node = start_node(home, settings | sections, name="ending")
    model_of(node)
    return node


def stream(node: RunningNode, number: int, max_tokens: int) -> list[str]:
    """The data of one stream's events, over a connection of its own; fails if the connection breaks.

    A busy node sends comments between them, to keep the connection alive.
    """
    body = {
        "model": model_of(node), "prompt": f"stream {number}", "max_tokens": max_tokens, "temperature": 0,
        "ignore_eos": True, "stream": True,
    }  # fmt: skip
    answer = CLIENT.post(f"{node.url}/v1/completions", json=body)
    events = answer.text.split("\n\n")
    return [event.removeprefix("data: ") for event in events if event.startswith("data: ")]


def under_streams(node: RunningNode, max_tokens: int, act: Callable[[], None]) -> list[list[str]]:
    """All events of STREAMS streams; `act` runs once all of them are in flight."""
    with ThreadPoolExecutor(STREAMS) as pool:
        streams = [pool.submit(stream, node, number, max_tokens) for number in range(STREAMS)]
        eventually(lambda: in_flight(node.snapshot()) == STREAMS, "all are in flight", PATIENCE)
        act()
        return [one.result() for one in streams]


STREAM_TOKENS = 2_500
"""So many that the first stream still goes on when a busy client gets to begin its last."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_breaks_no_stream_within_the_deadline(
    number: signal.Signals, long_model: Path, tmp_path: Path
) -> None:
    node = started(tmp_path / "home", long_model, runtime={"threads": 1, "drain_timeout": "5m"})
    engine = node.engine()

    def end() -> None:
        node.process.send_signal(number)
        eventually(lambda: HTTP.get(f"{node.url}/readyz").status_code == 404, "not ready")
        refused = complete(node, max_tokens=1)
        assert (refused.status_code, error_of(refused)["code"]) == (503, "draining")
        assert int(refused.headers["retry-after"]) > 0

    ends = under_streams(node, STREAM_TOKENS, end)
    assert [events[-1] for events in ends] == ["[DONE]"] * STREAMS
    texts = [[json.loads(event) for event in events[:-1]] for events in ends]
    assert all(events[-1]["choices"][0]["finish_reason"] == "length" for events in texts)
    assert node.process.wait(PATIENCE) == 0, node.log.read_text()
    assert not psutil.pid_exists(engine.pid)
    assert run_kvops("node", "status", env=node.env).returncode == 4


def test_past_the_deadline_the_rest_is_told_and_the_end_is_still_in_order(
    long_model: Path, tmp_path: Path
) -> None:
    node = started(tmp_path / "home", long_model, runtime={"threads": 1, "drain_timeout": "1s"})
    ends = under_streams(node, 16_000, lambda: node.process.send_signal(signal.SIGTERM))
    for events in ends:
        assert json.loads(events[-1])["error"]["code"] == "draining"
        assert "[DONE]" not in events
    assert node.process.wait(PATIENCE) == 0, node.log.read_text()


def test_a_spent_budget_ends_the_node_with_1(long_model: Path, tmp_path: Path) -> None:
    restart = {"budget": 1, "window": "10m", "backoff": "10ms"}
    node = started(tmp_path / "home", long_model, restart=restart)

    def kill() -> None:
        node.engine().kill()

    first = under_streams(node, 16_000, kill)
    eventually(lambda: HTTP.get(f"{node.url}/readyz").status_code == 200, "ready again", PATIENCE)
    last = under_streams(node, 15_000, kill)
    codes = {json.loads(events[-1])["error"]["code"] for events in first + last}
    assert codes == {"engine_restarted"}, "told also of the death of an engine that is not replaced"
    assert node.process.wait(PATIENCE) == 1
    said = node.log.read_text()
    assert (
        "error [engine_died]: the engine ended 2 times in 10m 00s, restart.budget allows 1" in said
    )
    assert run_kvops("node", "status", env=node.env).returncode == 4


# The budget itself.


def budget_of(**restart: object) -> RestartBudget:
    return RestartBudget(
        Settings(load_config(None, {f"restart.{key}": value for key, value in restart.items()}))
    )


def test_the_pause_doubles_up_to_its_bound_and_the_budget_ends() -> None:
    budget = budget_of(budget=5, backoff=1, backoff_max=6)
    assert [budget.spend() for _ in range(6)] == [1, 2, 4, 6, 6, None]


def test_a_budget_of_none_allows_no_restart() -> None:
    assert budget_of(budget=0).spend() is None


def test_restarts_long_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    budget = budget_of(budget=1, window=60, backoff=1)
    assert budget.spend() == 1
    now += 61
    assert budget.spend() == 1
    assert budget.spend() is None

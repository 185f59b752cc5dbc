"""How many requests run at once is one number for the queue's bound, the snapshot, the engine and the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvops.config.load import load_document
from kvops.errors import InvalidRequest, QueueFull, TenantLimit
from kvops.models.store import StoredModel
from kvops.node.check import CHECKS
from kvops.node.orders import start_message
from tests.node.test_answers import Bench


async def test_a_small_step_makes_the_queue_full_sooner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of 16 tokens has room for 8 requests, whatever max_batch_size is."""
    bench = Bench(tmp_path, monkeypatch, max_batch_size=32, max_batched_tokens=16, max_queue=2)
    for at in range(8):
        bench.admit(f"a{at}")
        bench.sinks[f"a{at}"].started()
    bench.admit("b")
    bench.admit("c")
    with pytest.raises(QueueFull, match="at most 2 may wait"):
        bench.admit("d")


async def test_what_an_idle_node_has_no_room_for_is_no_matter_of_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, monkeypatch, max_batch_size=2, max_queue=3)
    with pytest.raises(InvalidRequest, match=r"6 sequences .* the node allows 5") as never:
        bench.admit("a", n=6)
    assert (never.value.param, never.value.hint) == ("n", "Ask for them in several requests.")
    assert len(bench.admit("b", n=5).choices) == 5
    with pytest.raises((QueueFull, TenantLimit)):
        bench.admit("c")


def test_the_engine_and_the_check_go_by_it() -> None:
    small = {"runtime": {"max_batch_size": 32, "max_batched_tokens": 16}}
    config = load_document(small, "the test").config
    model = StoredModel(name="m", path=Path("/nowhere"), revision="r", source="test")
    assert start_message(config, model).max_batch_size == config.runtime.max_running == 8
    looked = CHECKS["batch"](config)
    assert looked.status == "warn"
    assert "8 requests run at once, not runtime.max_batch_size = 32" in looked.detail
    assert looked.remedy == "raise max_batched_tokens to 64, or lower max_batch_size to 8"
    assert CHECKS["batch"](load_document({}, "the test").config).status == "pass"

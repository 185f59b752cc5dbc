"""`runtime.max_concurrent_requests`: a ceiling over all that runs and waits, beside the queue's own bound."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvops.config.load import LoadedConfig
from kvops.config.schema import NodeConfig, Runtime
from kvops.errors import InvalidRequest, QueueFull
from tests.node.test_answers import Bench


async def test_the_bound_is_of_all_that_is_in_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, monkeypatch, max_batch_size=2, max_queue=50, max_concurrent_requests=3)
    first = bench.admit("a", n=2, priority="batch")
    second = bench.admit("b")
    for name in ("a-0", "a-1", "b"):
        bench.sinks[name].started()
    with pytest.raises(QueueFull, match=r"3 requests .*max_concurrent_requests allows 3"):
        bench.admit("c", priority="online")
    second.close()
    with pytest.raises(QueueFull):
        bench.admit("c", n=2)
    bench.admit("c")
    first.close()
    assert len(bench.admit("d", n=2).choices) == 2
    with pytest.raises(InvalidRequest, match=r"4 .*max_concurrent_requests allows 3") as never:
        bench.admit("e", n=4)
    assert never.value.param == "n"


async def test_it_changes_while_the_node_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, monkeypatch, max_batch_size=2, max_queue=50)
    for at in range(40):
        bench.admit(f"a{at}")
    runtime = Runtime(max_batch_size=2, max_queue=50, max_concurrent_requests=40)
    bench.settings.swap(LoadedConfig(NodeConfig(runtime=runtime), {}))
    with pytest.raises(QueueFull, match="max_concurrent_requests allows 40"):
        bench.admit("b")

"""A node whose pool holds next to nothing, and clients that all come at once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from kvops.telemetry.snapshot import Known
from tests.harness import RunningNode, start_node
from tests.node.conftest import complete, error_of, eventually_idle


@pytest.fixture(scope="module")
def cramped_node(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningNode]:
    settings: dict[str, object] = {
        "model": {"name": str(tiny_model)},
        "kv_cache": {"blocks": 6},
        "runtime": {"threads": 1, "max_queue": 24, "queue_timeout": "120s"},
    }
    node = start_node(tmp_path_factory.mktemp("cramped"), settings, name="cramped")
    yield node
    assert node.stop() == 0


def test_a_crowd_is_served_or_told_to_come_back(cramped_node: RunningNode) -> None:
    def ask(index: int) -> httpx.Response:
        prompt = [(index * 13 + n) % 300 for n in range(10 + index)]
        return complete(cramped_node, prompt, max_tokens=40, n=1 + index % 3)

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(ask, range(40)))
    for index, answer in enumerate(answers):
        if answer.status_code == 200:
            usage = answer.json()["usage"]
            assert usage["completion_tokens"] == 40 * (1 + index % 3)
        else:
            assert (answer.status_code, error_of(answer)["code"]) == (429, "queue_full")
            assert "retry-after" in answer.headers
    served = sum(answer.status_code == 200 for answer in answers)
    assert served >= 8, "so many of three choices each may wait at once"
    eventually_idle(cramped_node)
    progress = cramped_node.snapshot().progress
    assert isinstance(progress, Known)
    assert (progress.value.engine_restarts, progress.value.invariant_violations) == (0, 0)


def test_what_can_never_fit_is_refused_at_admission(cramped_node: RunningNode) -> None:
    assert complete(cramped_node, list(range(60)), max_tokens=36).status_code == 200
    refused = complete(cramped_node, list(range(60)), max_tokens=37)
    assert (refused.status_code, error_of(refused)["code"]) == (400, "context_length_exceeded")
    assert error_of(refused)["limit"] == 96

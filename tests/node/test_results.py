"""Kept results: only for requests that can have no other answer, bounded, and never across tenants."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from kvops.config.load import LoadedConfig
from kvops.config.schema import NodeConfig
from kvops.config.settings import Settings
from kvops.node.results import ResultStore
from kvops.node.sampling import SamplingParams
from kvops.node.wire import TokenDelta
from kvops.telemetry.snapshot import Known
from tests.harness import RunningNode, start_node
from tests.node.conftest import HTTP, chat, complete

GREEDY = SamplingParams(max_tokens=4, temperature=0)
EVENTS = [(0, TokenDelta(request_id="r", token_ids=(1,), finish="length"))]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def bounds(**store: object) -> Settings:
    config = NodeConfig.model_validate({"runtime": {"result_store": store}})
    return Settings(LoadedConfig(config, {}))


def test_only_what_can_have_no_other_answer_has_a_key() -> None:
    store = ResultStore(bounds(entries=1), "r")
    drawn = msgspec.structs.replace(GREEDY, temperature=1.0)
    assert store.key((((1,), GREEDY),), 1, ())
    assert store.key((((1,), msgspec.structs.replace(drawn, seed=1)),), 1, ())
    assert store.key((((1,), drawn),), 1, ()) is None
    assert store.key((((1,), GREEDY), ((2,), drawn)), 1, ()) is None
    assert ResultStore(bounds(), "r").key((((1,), GREEDY),), 1, ()) is None, "off by default"


def test_a_key_is_all_that_decides_the_answer() -> None:
    store = ResultStore(bounds(entries=1), "r")
    prompts = (((1, 2), GREEDY),)
    keys = [
        store.key(prompts, 1, ()),
        store.key(prompts, 2, ()),
        store.key(prompts, 1, ("x",)),
        store.key((((1, 3), GREEDY),), 1, ()),
        store.key((((1, 2), msgspec.structs.replace(GREEDY, max_tokens=5)),), 1, ()),
        store.key((((1,), GREEDY), ((2,), GREEDY)), 1, ()),
        ResultStore(bounds(entries=1), "s").key(prompts, 1, ()),
    ]
    assert len(set(keys)) == len(keys)
    assert store.key((((1, 2), GREEDY),), 1, ()) == keys[0]


def test_bounds_of_each_tenant() -> None:
    clock = Clock()
    store = ResultStore(bounds(entries=2, ttl="10s"), "r", clock)
    for key in (b"1", b"2"):
        store.put("a", key, EVENTS)
    assert store.get("a", b"1") == EVENTS
    assert store.get("b", b"1") is None
    store.put("a", b"3", EVENTS)
    assert store.get("a", b"2") is None, "the least recently used went"
    assert store.get("a", b"1") == store.get("a", b"3") == EVENTS
    store.put("b", b"1", EVENTS)
    clock.now = 11
    assert store.get("a", b"1") is None, "too old"
    assert store.flush() == 2
    assert store.get("b", b"1") is None


def test_bytes_are_bounded() -> None:
    store = ResultStore(bounds(entries=1000, bytes=1024), "r")
    large = [(0, TokenDelta(request_id="r", token_ids=(70_000,) * 300))]
    store.put("a", b"large", large)
    assert store.get("a", b"large") is None
    for n in range(200):
        store.put("a", str(n).encode(), EVENTS)
    kept = sum(store.get("a", str(n).encode()) is not None for n in range(200))
    assert 0 < kept < 200
    assert store.get("a", b"199") == EVENTS


@pytest.fixture(scope="module")
def keeping_node(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningNode]:
    settings: dict[str, object] = {
        "model": {"name": str(tiny_model)},
        "kv_cache": {"blocks": 128},
        "runtime": {"threads": 1, "result_store": {"entries": 100}},
    }
    node = start_node(tmp_path_factory.mktemp("keeping"), settings, name="keeping")
    yield node
    assert node.stop() == 0


def steps(node: RunningNode) -> int:
    progress = node.snapshot().progress
    assert isinstance(progress, Known)
    return progress.value.steps


def test_an_equal_request_is_answered_without_the_engine(keeping_node: RunningNode) -> None:
    fields = {"prompt": "the quick", "max_tokens": 12, "n": 2, "logprobs": 1}
    first = complete(keeping_node, **fields)
    before = steps(keeping_node)
    second = complete(keeping_node, **fields)
    assert "x-kvops-result" not in first.headers
    assert second.headers["x-kvops-result"] == "stored"
    assert second.json()["choices"] == first.json()["choices"]
    assert second.json()["usage"] == first.json()["usage"]
    assert steps(keeping_node) == before
    assert "kvops_result_store_hits_total 1.0" in HTTP.get(f"{keeping_node.url}/metrics").text


def test_streams_too_and_across_the_two_forms(keeping_node: RunningNode) -> None:
    whole = chat(keeping_node, "over the lazy", max_tokens=12)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    stored = chat(keeping_node, "over the lazy", max_tokens=12, **options)
    assert stored.headers["x-kvops-result"] == "stored"
    assert stored.text.endswith("data: [DONE]\n\n")
    events = [msgspec.json.decode(part[6:]) for part in stored.text.split("\n\n") if "{" in part]
    text = "".join(e["choices"][0]["delta"].get("content", "") for e in events if e["choices"])
    assert text == whole.json()["choices"][0]["message"]["content"]
    assert events[-1]["usage"] == whole.json()["usage"]


def test_a_stop_string_ends_the_stored_answer_too(keeping_node: RunningNode) -> None:
    free = complete(keeping_node, prompt="keys and", max_tokens=16).json()["choices"][0]["text"]
    stop = free[4:6]
    first = complete(keeping_node, prompt="keys and", max_tokens=16, stop=stop)
    second = complete(keeping_node, prompt="keys and", max_tokens=16, stop=stop)
    assert second.headers["x-kvops-result"] == "stored"
    assert first.json()["choices"] == second.json()["choices"]
    assert first.json()["choices"][0]["finish_reason"] == "stop"
    assert first.json()["usage"] == second.json()["usage"]


def test_drawn_answers_are_not_kept_and_a_flush_forgets(keeping_node: RunningNode) -> None:
    for _ in range(2):
        drawn = complete(keeping_node, prompt="a node", max_tokens=4, temperature=1)
        assert "x-kvops-result" not in drawn.headers
    seeded = {"prompt": "a node", "max_tokens": 4, "temperature": 1, "seed": 7}
    assert "x-kvops-result" not in complete(keeping_node, **seeded).headers
    assert complete(keeping_node, **seeded).headers["x-kvops-result"] == "stored"
    assert keeping_node.control("POST", "/control/flush").json()["results"] >= 1
    assert "x-kvops-result" not in complete(keeping_node, **seeded).headers

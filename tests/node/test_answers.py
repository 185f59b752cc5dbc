"""An answer while the engine is silent, and the schema that describes the routes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from kvops.config.load import load_config
from kvops.config.schema import NodeConfig, Runtime, Tenant
from kvops.config.schema import ResultStore as StoreSettings
from kvops.errors import EngineRestarted, QueueFull, TenantLimit
from kvops.models.store import resolve
from kvops.models.tokenizer import load_tokenizer
from kvops.node.admission import Admission, Work
from kvops.node.api import answers
from kvops.node.api.app import create_data_app
from kvops.node.api.replies import Replies
from kvops.node.api.shapes import CompletionShape
from kvops.node.daemon import Daemon
from kvops.node.generation import Event, Generation
from kvops.node.meter import Meter
from kvops.node.results import ResultStore
from kvops.node.sampling import SamplingParams
from kvops.node.supervisor import Sink, Supervisor
from kvops.node.wire import PriorityClass, Start, StepDone, Submit, TokenDelta


class Bench:
    """A supervisor without a process: requests are taken, and the test says what the engine says."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **runtime: int) -> None:
        self.meter = Meter()
        self.supervisor = Supervisor(
            _start(),
            tmp_path,
            stall_after=30,
            on_step=self.meter.step_done,
            on_phase=lambda step, detail: None,
        )
        self.supervisor.state = "ready"
        self.sinks: dict[str, Sink] = {}
        monkeypatch.setattr(
            self.supervisor, "submit", lambda request, sink: self._take(request, sink)
        )
        self.admission = Admission(
            NodeConfig(runtime=Runtime(**runtime)),
            self.supervisor,
            self.meter,
            ResultStore(StoreSettings(), "r"),
        )

    def _take(self, request: Submit, sink: Sink) -> None:
        self.sinks[request.request_id] = sink

    def admit(
        self,
        request_id: str,
        n: int = 1,
        priority: PriorityClass = "normal",
        tenant: str = "default",
    ) -> Generation:
        prompts = (((1, 2, 3), SamplingParams(max_tokens=8)),)
        return self.admission.admit(
            Work(request_id, tenant, b"", priority, prompts, n, asyncio.get_running_loop().time())
        )


def _start() -> Start:
    from kvops.node.wire import PoolPlan

    return Start(
        model_path="", model_name="", revision="", max_context_length=None, weights_dtype="auto",
        pool=PoolPlan(block_size=16), max_batch_size=1, max_batched_tokens=16, threads=1,
    )  # fmt: skip


async def test_comments_keep_a_silent_stream_alive(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "KEEP_ALIVE", 0.01)
    bench = Bench(tmp_path, monkeypatch)
    generation = bench.admit("r")
    tokenizer = load_tokenizer(tiny_model)
    shape = CompletionShape("cmpl-1", "m", tokenizer, logprobs=False, usage_field=False)
    answer = answers.Answer(generation, Replies(generation, tokenizer, [], 0), shape, 0)
    stream = answer._events(await answer._next_or_silence(), include_usage=False)
    assert [await anext(stream), await anext(stream)] == [b": keep-alive\n\n"] * 2
    bench.sinks["r"].started()
    bench.sinks["r"].delta(TokenDelta(request_id="r", token_ids=(70,), finish="length"))
    rest = [part async for part in stream if not part.startswith(b":")]
    assert json.loads(rest[0].removeprefix(b"data: "))["choices"][0]["finish_reason"] == "length"
    assert rest[-1] == b"data: [DONE]\n\n"
    generation.close()
    assert bench.meter.outcomes["length"] == 1


async def test_a_loss_after_the_first_token_is_the_last_event(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, monkeypatch)
    generation = bench.admit("r")
    tokenizer = load_tokenizer(tiny_model)
    shape = CompletionShape("cmpl-1", "m", tokenizer, logprobs=False, usage_field=False)
    answer = answers.Answer(generation, Replies(generation, tokenizer, [], 0), shape, 0)
    bench.sinks["r"].delta(TokenDelta(request_id="r", token_ids=(70,)))
    bench.sinks["r"].lost(EngineRestarted("gone"))
    parts = [
        part async for part in answer._events(await answer._next_or_silence(), include_usage=True)
    ]
    assert json.loads(parts[-1].removeprefix(b"data: "))["error"]["code"] == "engine_restarted"
    assert b"usage" not in b"".join(parts)
    generation.close()
    assert bench.meter.outcomes["error"] == 1


async def test_the_queue_counts_what_waits_beyond_the_free_slots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, monkeypatch, max_batch_size=2, max_queue=1)
    first, second, _third = bench.admit("a"), bench.admit("b"), bench.admit("c")
    with pytest.raises(QueueFull):
        bench.admit("d")
    bench.sinks["a"].started()
    bench.sinks["b"].started()
    with pytest.raises(QueueFull):
        bench.admit("d")
    first.close()
    second.close()
    with pytest.raises(QueueFull):
        bench.admit("d", n=3)
    assert len(bench.admit("d", n=2).choices) == 2


async def test_a_lower_class_does_not_fill_the_queue_of_a_better_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, monkeypatch, max_batch_size=1, max_queue=1)
    for name in ("a", "b"):
        bench.admit(name, priority="batch")
    with pytest.raises(QueueFull):
        bench.admit("c", priority="batch")
    for name in ("d", "e"):
        bench.admit(name, priority="online")
    for priority in ("online", "normal"):
        with pytest.raises(QueueFull):
            bench.admit("f", priority=priority)


async def test_a_tenants_bounds_are_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, monkeypatch, max_batch_size=4, max_queue=100)
    limits = {"noisy": Tenant(max_running=1, max_waiting=2), "mute": Tenant(max_waiting=0)}
    bench.admission._config = NodeConfig(runtime=bench.admission._runtime, tenants=limits)
    for name in ("a", "b", "c"):
        bench.admit(name, tenant="noisy")
    with pytest.raises(TenantLimit):
        bench.admit("d", tenant="noisy")
    with pytest.raises(TenantLimit):
        bench.admit("e", n=5, tenant="mute")
    assert len(bench.admit("f", n=4, tenant="mute").choices) == 4
    assert len(bench.admit("g", n=16, tenant="another").choices) == 16


async def test_a_generation_ends_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, monkeypatch)
    generation = bench.admit("r", n=2)
    assert not bench.admission.idle.is_set()
    bench.sinks["r-0"].started()
    bench.sinks["r-0"].delta(TokenDelta(request_id="r-0", token_ids=(70,), cached_tokens=2))
    event = await generation.next()
    assert isinstance(event, Event)
    generation.close()
    generation.close()
    assert bench.meter.outcomes["cancelled"] == 1
    assert generation.cached_tokens == 2
    assert bench.admission.idle.is_set()


async def test_the_routes_have_a_schema(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_config(None, {"model.name": str(tiny_model)})
    daemon = Daemon(loaded, resolve(str(tiny_model)), tmp_path, lambda step, detail: None)
    document = create_data_app(daemon._services).openapi()
    assert {"/v1/completions", "/v1/chat/completions", "/v1/tokenize", "/v1/models"} < set(
        document["paths"]
    )
    fields = document["components"]["schemas"]["ChatRequest"]
    assert fields["additionalProperties"] is False
    assert fields["properties"]["temperature"]["anyOf"][0]["maximum"] == 2


def test_steps_are_timed() -> None:
    meter = Meter()
    meter.step_done(StepDone(seconds=0.1))
    assert meter.registry.get_sample_value("kvops_engine_step_seconds_count") == 1

"""An answer while the engine is silent, and the schema that describes the routes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from kvops.config.load import LoadedConfig, load_config
from kvops.config.schema import NodeConfig, Runtime, Tenant
from kvops.config.settings import Settings
from kvops.errors import EngineRestarted, InvalidRequest, QueueFull, TenantLimit
from kvops.models.store import resolve
from kvops.models.tokenizer import load_tokenizer
from kvops.node.admission import Admission, Work
from kvops.node.api import answers
from kvops.node.api.app import create_data_app
from kvops.node.api.gate import Gate
from kvops.node.api.replies import Replies, TokenEntry
from kvops.node.api.shapes import CompletionShape
from kvops.node.audit import audited
from kvops.node.daemon import Daemon
from kvops.node.generation import Event, Generation
from kvops.node.meter import Meter
from kvops.node.quarantine import Quarantine
from kvops.node.results import ResultStore
from kvops.node.sampling import SamplingParams
from kvops.node.sinks import Sink
from kvops.node.supervisor import Supervisor
from kvops.node.wire import PriorityClass, Start, StepDone, Submit, TokenDelta, TokenLogprobs


class Bench:
    """A supervisor without a process: requests are taken, and the test says what the engine says."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **runtime: int) -> None:
        settings = Settings(LoadedConfig(NodeConfig(runtime=Runtime(**runtime)), {}))
        self.settings = settings
        self.meter = Meter()
        self.supervisor = Supervisor(
            _start(),
            tmp_path,
            settings,
            on_step=self.meter.step_done,
            on_phase=lambda step, detail: None,
            on_lost=lambda reason: None,
        )
        self.supervisor.state = "ready"
        self.sinks: dict[str, Sink] = {}
        monkeypatch.setattr(
            self.supervisor, "submit", lambda request, sink: self._take(request, sink)
        )
        self.admission = Admission(
            settings,
            self.supervisor,
            self.meter,
            ResultStore(settings, "r"),
            Quarantine(tmp_path / "quarantine.json", settings),
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
    config = NodeConfig(runtime=bench.settings.config.runtime, tenants=limits)
    bench.settings.swap(LoadedConfig(config, {}))
    for name in ("a", "b", "c"):
        bench.admit(name, tenant="noisy")
    with pytest.raises(TenantLimit):
        bench.admit("d", tenant="noisy")
    with pytest.raises(InvalidRequest, match="this key's tenant allows 4"):
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


def answer_of(
    generation: Generation, model: Path, stops: list[str]
) -> tuple[answers.Answer, Replies]:
    tokenizer = load_tokenizer(model)
    shape = CompletionShape("cmpl-1", "m", tokenizer, logprobs=False, usage_field=False)
    replies = Replies(generation, tokenizer, stops, 0)
    return answers.Answer(generation, replies, shape, 0), replies


def letters(model: Path, text: str) -> tuple[int, ...]:
    tokenizer = load_tokenizer(model)
    return tuple(tokenizer.encode(letter, special=False)[0] for letter in text)


@pytest.mark.parametrize("at_once", [True, False])
async def test_usage_and_outcome_are_those_of_the_answer(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    """However far the engine came before the stop string was seen."""
    bench = Bench(tmp_path, monkeypatch)
    generation = bench.admit("r")
    answer, _ = answer_of(generation, tiny_model, ["6"])
    ids = letters(tiny_model, "ab6cd")
    for part in [ids] if at_once else [ids[at : at + 1] for at in range(len(ids))]:
        finish = "length" if part[-1] == ids[-1] else None
        bench.sinks["r"].delta(TokenDelta(request_id="r", token_ids=part, finish=finish))
    stream = answer._events(await answer._next_or_silence(), include_usage=True)
    *_, counts, done = [part async for part in stream]
    generation.close()
    assert done == b"data: [DONE]\n\n"
    assert json.loads(counts.removeprefix(b"data: "))["usage"]["completion_tokens"] == 3
    assert (bench.meter.outcomes["stop"], bench.meter.outcomes["length"]) == (1, 0)
    assert bench.meter.generation_tokens == 5


async def test_a_stop_string_at_the_last_token_is_a_stop(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, monkeypatch)
    generation = bench.admit("r")
    answer, _ = answer_of(generation, tiny_model, ["6"])
    ids = letters(tiny_model, "ab6")
    bench.sinks["r"].delta(TokenDelta(request_id="r", token_ids=ids, finish="length"))
    body = json.loads((await answer.whole(_patient())).body)
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == 3
    assert bench.meter.outcomes["stop"] == 1


async def test_who_leaves_before_the_end_is_cancelled_though_the_engine_had_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, monkeypatch)
    generation = bench.admit("r")
    bench.sinks["r"].delta(TokenDelta(request_id="r", token_ids=(70,), finish="length"))
    generation.close()
    assert bench.meter.outcomes["cancelled"] == 1


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_defect_while_answering_is_an_error_of_the_request(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streamed: bool
) -> None:
    bench = Bench(tmp_path, monkeypatch)
    generation = bench.admit("r")
    answer, replies = answer_of(generation, tiny_model, [])
    replies.by_index.clear()
    bench.sinks["r"].delta(TokenDelta(request_id="r", token_ids=(70,), finish="length"))
    if streamed:
        stream = answer._events(await answer._next_or_silence(), include_usage=False)
        assert b"internal_error" in b"".join([part async for part in stream])
        generation.close()
    else:
        with pytest.raises(IndexError):
            await answer.whole(_patient())
    assert bench.meter.outcomes["error"] == 1
    assert bench.meter.traffic().error_ratio == 1


def _patient() -> Request:
    async def receive() -> dict[str, str]:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    return Request({"type": "http", "headers": []}, receive)


async def test_a_defect_before_admission_is_counted() -> None:
    meter = Meter()

    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise ZeroDivisionError

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    gate = Gate(broken, lambda scope, headers: None, meter.rejected)
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/v1/models",
        "headers": [],
        "query_string": b"",
    }
    await gate(scope, _patient().receive, send)
    assert sent[0]["status"] == 500
    assert meter.rejections["internal_error"] == 1
    assert meter.traffic().error_ratio == 1


def test_alternatives_have_names_of_their_own(tiny_model: Path) -> None:
    tokenizer = load_tokenizer(tiny_model)
    parts = [
        token
        for token in range(tokenizer.vocab_size)
        if b"\x80" <= tokenizer.token_bytes(token) < b"\xc0"
    ][:4]
    letter = letters(tiny_model, "a")[0]
    top = tuple((token, -1.0 - at) for at, token in enumerate(parts[:3]))
    entries = [
        TokenEntry(parts[1], 0, TokenLogprobs(-2.0, top)),
        TokenEntry(letter, 0, TokenLogprobs(-9.0, top)),
        TokenEntry(letter, 0, TokenLogprobs(-9.0, ())),
    ]
    shape = CompletionShape("cmpl-1", "m", tokenizer, logprobs=True, usage_field=False)
    table = shape._table(entries)
    for entry, name, values in zip(entries, table["tokens"], table["top_logprobs"], strict=True):
        expected = dict(entry.logprobs.top) | {entry.token_id: entry.logprobs.logprob}
        assert values[name] == entry.logprobs.logprob
        assert list(values.values()) == list(expected.values())
    assert table["tokens"][0] == f"bytes:\\x{tokenizer.token_bytes(parts[1]).hex()}"
    assert table["tokens"][1] == "a"


async def test_the_routes_have_a_schema(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_config(None, {"model.name": str(tiny_model)})
    model = resolve(str(tiny_model))
    with audited(loaded) as audit:
        daemon = Daemon(loaded, model, tmp_path, audit, lambda step, detail: None)
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

"""A small node-like server on loopback whose behaviour can be broken in one named way at a time.

It serves no model: a token is a word, and answers are fixed words. Sound by default, so that a check
that fails on a defect is known to pass without it. Data plane and control plane have a port each.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import uvicorn
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from kvops.telemetry import snapshot as snap
from kvops.verify.contract import FAMILIES, ONE_PER_REQUEST

MODEL, LIMIT, TOKEN, KEY = "words", 512, "admin-token", "client-key"
BLOCKS, TOTAL = 64, 1000
TOKEN_SECONDS = 0.002
ENDLESS_TOKEN_SECONDS = 0.05
"""Of a request that ignores the end of the text: it must still run when a busy test gets to look at it."""
FIELDS = {
    "model",
    "prompt",
    "messages",
    "max_tokens",
    "temperature",
    "stream",
    "stream_options",
    "ignore_eos",
}


def error(status: int, code: str, **extra: Any) -> JSONResponse:
    body = {
        "message": f"refused: {code}",
        "type": "invalid_request_error",
        "param": None,
        "code": code,
    }
    return JSONResponse({"error": body | extra}, status)


@dataclass
class FaultyNode:
    defects: frozenset[str] = frozenset()
    keys: bool = False
    url: str = ""
    control_url: str = ""
    running: int = 0
    generated: int = 0
    restarts: int = 0
    asked: int = 0
    prompts: list[list[str]] = field(default_factory=list)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    metrics: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kinds = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}
        for name, kind in FAMILIES.items():
            if not (self.has("missing_family") and name == "kvops_kv_blocks"):
                if self.has("wrong_type") and name == "kvops_preemptions_total":
                    kind = "gauge"
                labels = ["state"] if name == "kvops_kv_blocks" else []
                self.metrics[name] = kinds[kind](name, "help", labels, registry=self.registry)

    def has(self, defect: str) -> bool:
        return defect in self.defects

    # Data plane

    async def livez(self, request: Request) -> Response:
        return error(503, "not_ready") if self.has("stalled") else PlainTextResponse("ok")

    async def readyz(self, request: Request) -> Response:
        return error(503, "not_ready") if self.has("not_ready") else PlainTextResponse("ok")

    async def models(self, request: Request) -> Response:
        entry = {"id": MODEL, "object": "model", "owned_by": "kvops", "max_model_len": LIMIT}
        if self.has("no_limit"):
            del entry["max_model_len"]
        return JSONResponse({"object": "list", "data": [entry]})

    async def tokenize(self, request: Request) -> Response:
        return JSONResponse({"count": len(words((await request.json())["prompt"]))})

    async def completions(self, request: Request) -> Response:
        return await self.answer(request, lambda body: words(body["prompt"]), {"prompt": str})

    async def chat(self, request: Request) -> Response:
        def prompt(body: dict[str, Any]) -> list[str]:
            turns = body["messages"][-1:] if self.has("drops_turns") else body["messages"]
            return [word for turn in turns for word in words(turn["content"])]

        return await self.answer(request, prompt, {"messages": list})

    async def answer(self, request: Request, prompt_of: Any, required: dict[str, type]) -> Response:
        self.asked += 1
        if self.has("hangs"):
            await asyncio.sleep(3600)
        try:
            body = json.loads(await request.body())
        except ValueError:
            return error(500 if self.has("crashes_on_malformed") else 400, "invalid_request")
        refusal = self.refusal(body, required)
        if refusal is not None:
            return refusal
        prompt, wanted = prompt_of(body), body["max_tokens"]
        if len(prompt) + wanted > LIMIT:
            if self.has("engine_dies_over_length"):
                self.restarts += 1
            if self.has("truncates_silently"):
                prompt, wanted = prompt[: LIMIT - 1], 1
            elif not self.has("accepts_over_length"):
                extra = (
                    {} if self.has("no_numbers") else {"prompt_tokens": len(prompt), "limit": LIMIT}
                )
                return error(400, "context_length_exceeded", **extra)
        if body.get("stream"):
            events = self.events(body, prompt, wanted, "messages" in body)
            return StreamingResponse(events, media_type="text/event-stream")
        return await self.plain(request, body, prompt, wanted)

    def refusal(self, body: Any, required: dict[str, type]) -> Response | None:
        if not isinstance(body, dict):
            return error(400, "invalid_request")
        if not self.has("any_model") and body.get("model") != MODEL:
            return error(404, "model_not_found")
        unknown = set(body) - FIELDS
        wrong = any(not isinstance(body.get(name), kind) for name, kind in required.items())
        if (
            wrong
            or not isinstance(body.get("max_tokens"), int)
            or (unknown and not self.has("any_field"))
        ):
            return error(400, "invalid_request")
        return None

    async def tokens(self, body: dict[str, Any], count: int) -> AsyncIterator[str]:
        """One word at a time, holding blocks while it lasts."""
        pace = ENDLESS_TOKEN_SECONDS if body.get("ignore_eos") else TOKEN_SECONDS
        self.running += 1
        try:
            for index in range(count):
                await asyncio.sleep(pace)
                self.generated += 1
                yield f" word{index}"
        finally:
            self.running -= 1

    async def plain(
        self, request: Request, body: dict[str, Any], prompt: list[str], wanted: int
    ) -> Response:
        text, chat = "", "messages" in body
        cached = self.cached(prompt)
        async for word in self.tokens(body, wanted):
            text += word
            if not self.has("ignores_disconnect") and await request.is_disconnected():
                return Response(status_code=499)
        usage = self.usage(prompt, wanted, cached)
        self.count(usage)
        text = "" if self.has("empty") else text
        choice = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        finish = "gave_up" if self.has("odd_finish") else "length"
        choices = [{"index": 0, "finish_reason": finish} | choice]
        return JSONResponse({"id": "x", "choices": choices, "usage": usage})

    async def events(
        self, body: dict[str, Any], prompt: list[str], wanted: int, chat: bool
    ) -> AsyncIterator[bytes]:
        def event(text: str, finish: str | None = None) -> bytes:
            part = {"delta": {"content": text}} if chat else {"text": text}
            return sse({"choices": [{"index": 0, "finish_reason": finish} | part]})

        if chat:
            yield sse({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        task: set[asyncio.Task[None]] = set()
        if self.has("ignores_disconnect"):
            task.add(asyncio.create_task(self.burn(body, wanted)))
        cached = self.cached(prompt)
        async for word in self.tokens(body, wanted):
            yield event(" other" if self.has("stream_differs") else word)
        yield event("", "length")
        usage = self.usage(prompt, wanted, cached)
        self.count(usage)
        if body.get("stream_options", {}).get("include_usage") and not self.has("no_usage_chunk"):
            yield sse({"choices": [], "usage": usage})
        if not self.has("no_done"):
            yield b"data: [DONE]\n\n"

    async def burn(self, body: dict[str, Any], wanted: int) -> None:
        async for _ in self.tokens(body, wanted):
            pass

    def cached(self, prompt: list[str]) -> int:
        def common(other: list[str]) -> int:
            same = [a == b for a, b in zip(prompt, other, strict=False)]
            return same.index(False) if False in same else len(same)

        best = max((common(other) for other in self.prompts), default=0)
        self.prompts.append(prompt)
        return min(best, len(prompt) - 1)

    def usage(self, prompt: list[str], wanted: int, cached: int) -> dict[str, Any]:
        total = len(prompt) + wanted + (3 if self.has("wrong_usage") else 0)
        return {
            "prompt_tokens": len(prompt), "completion_tokens": wanted, "total_tokens": total,
            "prompt_tokens_details": {"cached_tokens": 0 if self.has("no_reuse") else cached},
        }  # fmt: skip

    def count(self, usage: dict[str, Any]) -> None:
        if self.has("frozen_counters"):
            return
        self.metrics["kvops_prompt_tokens_total"].inc(usage["prompt_tokens"])
        self.metrics["kvops_generation_tokens_total"].inc(usage["completion_tokens"])
        self.metrics["kvops_engine_steps_total"].inc()
        for series in ONE_PER_REQUEST:
            metric = self.metrics[series.removesuffix("_count")]
            metric.observe(1) if series.endswith("_count") else metric.inc()

    async def metrics_page(self, request: Request) -> Response:
        if self.has("no_metrics"):
            return error(404, "not_found")
        self.metrics["kvops_requests_running"].set(self.running)
        if not self.has("missing_family"):
            self.metrics["kvops_kv_blocks"].labels("used").set(self.held())
        page = generate_latest(self.registry).decode()
        if self.has("duplicate_series"):
            page += "kvops_engine_up 1.0\n"
        return PlainTextResponse(page)

    async def invocations(self, request: Request) -> Response:
        return await self.completions(request) if self.has("key_hole") else error(404, "not_found")

    # Control plane

    async def snapshot(self, request: Request) -> Response:
        host = request.headers.get("host", "")
        refused = request.headers.get("authorization") != f"Bearer {TOKEN}"
        if not self.has("open_control"):
            if refused:
                return error(401, "invalid_api_key")
            if "origin" in request.headers or not host.startswith("127.0.0.1"):
                return error(403, "forbidden")
        return Response(snap.encode(self.state()), media_type="application/json")

    def held(self) -> int:
        return self.running * 4 + (2 if self.has("leaks_blocks") else 0)

    def state(self) -> snap.NodeSnapshot:
        now = time.time()
        used = self.held()
        free = TOTAL - 600 + (1 if self.has("ledger_off") else 0)
        ledger = snap.MemoryLedger("cpu", TOTAL, 300, 200, 50, 50, free, used, 0)
        blocks = snap.KvUsage(
            16, BLOCKS, used, 0, BLOCKS - used - self.has("lost_block"), 1, 0.0, 0, 0
        )
        none = snap.NotExposed("not part of this server")
        queue = snap.QueueState(self.running, 0, None, 32, 64, {})
        traffic = snap.Traffic({}, {}, 0, self.generated, 60.0, 0.0, 0.0, 0.0, None)
        progress = snap.Progress(1, 0.0, False, self.restarts, int(self.has("broken_invariant")))
        model = snap.ModelInfo(MODEL, "llama", 1, "float32", "float32", LIMIT, "0123456789ab")
        return snap.NodeSnapshot(
            node="faulty", engine="kvops", engine_version="0.0.1", url=self.url, taken_at=now, state="ready",
            state_reason="", uptime_seconds=snap.Known(1.0, now), model=snap.Known(model, now), config_hash=none,
            memory=snap.Known(ledger, now), kv=snap.Known(blocks, now), prefix_cache=none,
            queue=snap.Known(queue, now), latency=none, traffic=snap.Known(traffic, now),
            progress=snap.Known(progress, now), gpus=none, tenants=none, requests=none,
        )  # fmt: skip

    # Wiring

    def data_app(self) -> Any:
        post = ["POST"]
        routes = [
            Route("/livez", self.livez), Route("/readyz", self.readyz), Route("/v1/models", self.models),
            Route("/metrics", self.metrics_page), Route("/v1/tokenize", self.tokenize, methods=post),
            Route("/v1/completions", self.completions, methods=post),
            Route("/v1/chat/completions", self.chat, methods=post),
            Route("/invocations", self.invocations, methods=post),
        ]  # fmt: skip
        return Guard(self, Starlette(routes=routes, exception_handlers={404: not_found}))

    def control_app(self) -> Any:
        return Starlette(routes=[Route("/control/snapshot", self.snapshot)])


@dataclass
class Guard:
    """Keys before routes, as a node must have it; the hole leaves one path out."""

    node: FaultyNode
    app: Any

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope.get("path", "")
        headers = dict(scope.get("headers", []))
        inner = path.startswith("/v1") or not self.node.has("key_hole")
        guarded = self.node.keys and path not in ("/livez", "/readyz", "/metrics") and inner
        if (
            scope["type"] == "http"
            and guarded
            and headers.get(b"authorization") != f"Bearer {KEY}".encode()
        ):
            await error(401, "invalid_api_key")(scope, receive, send)
            return
        await self.app(scope, receive, send)


async def not_found(request: Request, exc: Exception) -> Response:
    return error(404, "not_found")


def words(text: str) -> list[str]:
    return text.split()


def sse(event: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(event) + b"\n\n"


@contextmanager
def serve(*defects: str, keys: bool = False) -> Iterator[FaultyNode]:
    """Run both planes on free loopback ports until the block is left."""
    node = FaultyNode(frozenset(defects), keys)
    with (
        _listening(node.data_app()) as node.url,
        _listening(node.control_app()) as node.control_url,
    ):
        yield node


@contextmanager
def _listening(app: Any) -> Iterator[str]:
    server = uvicorn.Server(
        uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=0, lifespan="off")
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 10
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.started
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(10)
        assert not thread.is_alive()

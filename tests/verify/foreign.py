"""Another engine's server: OpenAI's routes in vLLM's words, no control plane, no tokenizer, no metrics of kvops.

It answers as vLLM 0.32 does: numbers as error codes, 503 without Retry-After when it is full, a key check by the
prefix of the path, fields that it does not know passed over, prompts of token ids. No model: a token is a word, and it
finds the number of a needle prompt.
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

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from kvops.testing.words import asked_key, found_value
from tests.verify.foreign_metrics import Counts

MODEL, LIMIT, KEY = "words", 512, "foreign-key"
TOKEN_SECONDS, QUICK = 0.02, 0.002
VOCABULARY = 32_000
TOO_LONG = (
    f"This model's maximum context length is {LIMIT} tokens. However, your prompt contains at least {LIMIT + 1} input "
    "tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt."
)


def refusal(status: int, kind: str, message: str = "", param: str | None = None) -> Response:
    error = {"message": message or f"refused: {kind}", "type": kind, "param": param, "code": status}
    return JSONResponse({"error": error}, status)


@dataclass
class Foreign:
    keyed: bool = False
    places: int = 8
    running: int = 0
    url: str = ""
    token_seconds: float = TOKEN_SECONDS
    shows: bool = False
    """It has a /metrics page."""
    counts: Counts = field(default_factory=Counts)
    lists_limit: bool = True
    forgets: tuple[int, ...] = ()
    """Which of the needle prompts, by when they come, it answers without the number."""
    needles: int = 0
    breaks_at: str = ""
    """A field of a request that makes it answer 500."""
    changed_by: str = ""
    """A field of a request after which it answers otherwise."""
    changed: bool = False
    full_by: str = ""
    """A field of a request after which it has no place for any other."""

    async def health(self, request: Request) -> Response:
        return Response()

    async def metrics(self, request: Request) -> Response:
        return Response(self.counts.page()) if self.shows else Response("Not Found", 404)

    async def models(self, request: Request) -> Response:
        entry: dict[str, Any] = {"id": MODEL, "object": "model", "owned_by": "vllm"}
        entry |= {"max_model_len": LIMIT} if self.lists_limit else {}
        return JSONResponse({"object": "list", "data": [entry]})

    async def completions(self, request: Request) -> Response:
        body = await _object(request)
        if body is None:
            return refusal(400, "Bad Request")
        prompt = body.get("prompt")
        if isinstance(prompt, str):
            return await self.answer(request, body, prompt, len(prompt.split()), chat=False)
        if isinstance(prompt, list) and prompt and all(map(_is_token, prompt)):
            return await self.answer(request, body, repr(prompt), len(prompt), chat=False)
        return refusal(400, "Bad Request")

    async def chat(self, request: Request) -> Response:
        body = await _object(request)
        turns = body.get("messages") if body else None
        if not body or not isinstance(turns, list) or not turns or not all(map(_turn, turns)):
            return refusal(400, "Bad Request")
        said = " ".join(turn["content"] for turn in turns)
        return await self.answer(request, body, said, len(said.split()) + 3, chat=True)

    async def answer(
        self, request: Request, body: dict[str, Any], prompt: str, count: int, *, chat: bool
    ) -> Response:
        if self.breaks_at in body:
            return refusal(500, "InternalServerError")
        self.changed = self.changed or self.changed_by in body
        self.places = 0 if self.full_by in body else self.places
        if body.get("model") != MODEL:
            return refusal(404, "NotFoundError")
        wanted = body.get("max_tokens", 16)
        if not _sensible(body):
            return refusal(400, "BadRequestError")
        if count + wanted > LIMIT:
            return refusal(400, "BadRequestError", TOO_LONG, "input_tokens")
        if not request.scope["has_place"]:
            return refusal(503, "Service Unavailable")
        said, finish = self.said(prompt, wanted)
        if body.get("stream"):
            return StreamingResponse(
                self.events(count, said, finish, chat), media_type="text/event-stream"
            )
        text = ""
        async for word in self.spoken(count, said):
            if await request.is_disconnected():
                return Response()
            text += word
        part = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        choice = {"index": 0, "finish_reason": finish} | part
        usage = _usage(count, len(said))
        return JSONResponse({"id": "x", "choices": [choice], "usage": usage})

    def said(self, prompt: str, wanted: int) -> tuple[list[str], str]:
        """Words, and why they end."""
        key = asked_key(prompt)
        value = found_value(prompt, key) if key else None
        if value is not None:
            self.needles += 1
        if value is not None and self.needles not in self.forgets:
            return f"The number is {value}.".split()[:wanted], "stop"
        return [f"{'x' if self.changed else 'w'}{index}" for index in range(wanted)], "length"

    async def spoken(self, count: int, said: list[str]) -> AsyncIterator[str]:
        with self.counts.request(count) as told:
            for word in said:
                await asyncio.sleep(self.token_seconds)
                told.word()
                yield f" {word}"

    async def events(
        self, count: int, said: list[str], finish: str, chat: bool
    ) -> AsyncIterator[bytes]:
        if chat:
            yield _event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        async for word in self.spoken(count, said):
            part = {"delta": {"content": word}} if chat else {"text": word}
            yield _event({"choices": [{"index": 0, "finish_reason": None} | part]})
        part = {"delta": {}} if chat else {"text": ""}
        yield _event({"choices": [{"index": 0, "finish_reason": finish} | part]})
        yield _event({"choices": [], "usage": _usage(count, len(said))})
        yield b"data: [DONE]\n\n"

    def app(self) -> Any:
        post = ["POST"]
        routes = [
            Route("/health", self.health), Route("/v1/models", self.models), Route("/metrics", self.metrics),
            Route("/v1/completions", self.completions, methods=post),
            Route("/v1/chat/completions", self.chat, methods=post),
            Route("/invocations", self.completions, methods=post),
        ]  # fmt: skip
        return _PrefixGuard(_Places(Starlette(routes=routes), self), self.keyed)


@dataclass
class _Places:
    """A request has its place from its first byte on, or none at all: what comes at once is counted at once."""

    app: Any
    node: Foreign

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        taken = scope.get("method") == "POST" and self.node.running < self.node.places
        self.node.running += taken
        try:
            await self.app(scope | {"has_place": taken}, receive, send)
        finally:
            self.node.running -= taken


@dataclass
class _PrefixGuard:
    app: Any
    keyed: bool

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        sent = dict(scope.get("headers", [])).get(b"authorization")
        guarded = self.keyed and scope.get("path", "").startswith("/v1")
        if guarded and sent != f"Bearer {KEY}".encode():
            await JSONResponse({"error": "Unauthorized"}, 401)(scope, receive, send)
            return
        await self.app(scope, receive, send)


async def _object(request: Request) -> dict[str, Any] | None:
    try:
        body = json.loads(await request.body())
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def _is_token(token: Any) -> bool:
    return type(token) is int and 0 <= token < VOCABULARY


def _turn(turn: Any) -> bool:
    return isinstance(turn, dict) and isinstance(turn.get("content"), str) and "role" in turn


def _sensible(body: dict[str, Any]) -> bool:
    """Of the sampling fields only these are looked at: it is as lenient as some engines are."""
    wanted, heat = body.get("max_tokens", 16), body.get("temperature", 1.0)
    return type(wanted) is int and wanted > 0 and type(heat) in (int, float) and 0 <= heat <= 2


def _usage(prompt: int, completion: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


@contextmanager
def foreign(**traits: Any) -> Iterator[Foreign]:
    """On a free loopback port until the block is left."""
    node = Foreign(**traits)
    server = uvicorn.Server(
        uvicorn.Config(node.app(), port=0, log_level="critical", timeout_graceful_shutdown=0)
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 10
    while not server.started:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    node.url = f"http://127.0.0.1:{port}"
    try:
        yield node
    finally:
        server.should_exit = True
        thread.join(10)
        assert not thread.is_alive()

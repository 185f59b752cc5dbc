"""Another engine's server: OpenAI's routes in vLLM's words, no control plane, no tokenizer, no metrics of kvops.

It answers as vLLM 0.32 does: numbers as error codes, 503 without Retry-After when it is full, a key check by the
prefix of the path. No model: a token is a word.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

MODEL, LIMIT, KEY = "words", 512, "foreign-key"
TOKEN_SECONDS = 0.02


def refusal(status: int, kind: str) -> Response:
    error = {"message": f"refused: {kind}", "type": kind, "param": None, "code": status}
    return JSONResponse({"error": error}, status)


@dataclass
class Foreign:
    keyed: bool = False
    places: int = 8
    running: int = 0
    url: str = ""

    async def health(self, request: Request) -> Response:
        return Response()

    async def models(self, request: Request) -> Response:
        entry = {"id": MODEL, "object": "model", "owned_by": "vllm", "max_model_len": LIMIT}
        return JSONResponse({"object": "list", "data": [entry]})

    async def completions(self, request: Request) -> Response:
        body = await _object(request)
        if body is None or not isinstance(body.get("prompt"), str):
            return refusal(400, "Bad Request")
        return await self.answer(request, body, body["prompt"], chat=False)

    async def chat(self, request: Request) -> Response:
        body = await _object(request)
        turns = body.get("messages") if body else None
        if not body or not isinstance(turns, list) or not turns or not all(map(_turn, turns)):
            return refusal(400, "Bad Request")
        said = " ".join(turn["content"] for turn in turns)
        return await self.answer(request, body, said, chat=True)

    async def answer(
        self, request: Request, body: dict[str, Any], prompt: str, *, chat: bool
    ) -> Response:
        if body.get("model") != MODEL:
            return refusal(404, "NotFoundError")
        count, wanted = len(prompt.split()) + 3 * chat, body.get("max_tokens", 16)
        if not _sensible(body) or count + wanted > LIMIT:
            return refusal(400, "BadRequestError")
        if not request.scope["has_place"]:
            return refusal(503, "Service Unavailable")
        if body.get("stream"):
            return StreamingResponse(
                self.events(count, wanted, chat), media_type="text/event-stream"
            )
        text = "".join([word async for word in self.words(wanted)])
        part = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        choice = {"index": 0, "finish_reason": "length"} | part
        return JSONResponse({"id": "x", "choices": [choice], "usage": _usage(count, wanted)})

    async def events(self, count: int, wanted: int, chat: bool) -> AsyncIterator[bytes]:
        if chat:
            yield _event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        async for word in self.words(wanted):
            part = {"delta": {"content": word}} if chat else {"text": word}
            yield _event({"choices": [{"index": 0, "finish_reason": None} | part]})
        part = {"delta": {}} if chat else {"text": ""}
        yield _event({"choices": [{"index": 0, "finish_reason": "length"} | part]})
        yield _event({"choices": [], "usage": _usage(count, wanted)})
        yield b"data: [DONE]\n\n"

    async def words(self, wanted: int) -> AsyncIterator[str]:
        for index in range(wanted):
            await asyncio.sleep(TOKEN_SECONDS)
            yield f" w{index}"

    def app(self) -> Any:
        post = ["POST"]
        routes = [
            Route("/health", self.health), Route("/v1/models", self.models),
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
def foreign(*, keyed: bool = False) -> Iterator[Foreign]:
    """On a free loopback port until the block is left."""
    node = Foreign(keyed)
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

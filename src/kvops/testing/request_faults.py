"""Faults in what is taken, refused and said of it: lengths, fields, routes, keys. For a node and a proxy."""

from __future__ import annotations

import asyncio
from typing import Any

from kvops.node.api.schemas import ChatRequest, CompletionRequest
from kvops.testing.between import Call, Fault, Reply

MARGIN = 24
"""Tokens that a cut prompt stays below the limit, since it is cut by characters."""


class Hangs(Fault):
    """No inference is answered; health, models and metrics are."""

    async def enter(self, call: Call) -> Reply | None:
        if call.infers:
            await asyncio.Event().wait()
        return None


class Says(Fault):
    """A route that gives one answer, whatever the node would say."""

    def __init__(self, path: str, status: int, body: dict[str, Any]) -> None:
        self._path, self._status, self._body = path, status, body

    async def enter(self, call: Call) -> Reply | None:
        return Reply.of(self._status, self._body) if call.path == self._path else None


class NoRetryAfter(Fault):
    async def leave(self, call: Call, reply: Reply) -> bool:
        if reply.status in (429, 503):
            reply.headers = [pair for pair in reply.headers if pair[0] != b"retry-after"]
        return False


class NoNumbers(Fault):
    """A refusal for length that does not say by how much."""

    async def leave(self, call: Call, reply: Reply) -> bool:
        if reply.code == "context_length_exceeded":
            body = reply.json
            for name in ("prompt_tokens", "limit"):
                body["error"].pop(name, None)
            reply.tell(body)
        return False


class CutsPrompts(Fault):
    """What is too long is cut and answered as if it were not. `claims_all`: and says that it read it all."""

    def __init__(self, *, claims_all: bool) -> None:
        self._claims_all = claims_all

    async def leave(self, call: Call, reply: Reply) -> bool:
        error = reply.json.get("error") or {}
        if reply.code == "context_length_exceeded" and "cut" not in call.memory:
            call.memory["cut"] = error["prompt_tokens"]
            call.send(_cut(call.json, error["prompt_tokens"], error["limit"]))
            return True
        if "cut" in call.memory and reply.status == 200 and self._claims_all:
            body = reply.json
            usage = body["usage"]
            usage["prompt_tokens"] = call.memory["cut"]
            usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]
            reply.tell(body)
        return False


def _cut(body: dict[str, Any], tokens: int, limit: int) -> dict[str, Any]:
    """`body` so that it fits: less output first, then the end of the prompt."""
    body["max_tokens"] = min(body.get("max_tokens") or 16, limit // 4)
    room = limit - body["max_tokens"] - MARGIN
    share = min(1.0, 0.9 * room / tokens)
    if isinstance(body.get("prompt"), list):
        body["prompt"] = body["prompt"][:room]
    elif "prompt" in body:
        body["prompt"] = body["prompt"][: int(len(body["prompt"]) * share)]
    else:
        last = body["messages"][-1]
        last["content"] = last["content"][: int(len(last["content"]) * share)]
    return body


class ForgetsTurns(Fault):
    """Only the last message is read."""

    async def enter(self, call: Call) -> Reply | None:
        messages = call.json.get("messages")
        if call.infers and isinstance(messages, list):
            call.send(call.json | {"messages": messages[-1:]})
        return None


class AnyModel(Fault):
    """Whatever model is asked for, the one that there is answers."""

    async def leave(self, call: Call, reply: Reply) -> bool:
        if call.infers and reply.code == "model_not_found" and "model" not in call.memory:
            call.memory["model"] = True
            call.send(call.json | {"model": self._served(reply)})
            return True
        return False

    def _served(self, reply: Reply) -> str:
        said = str(reply.json["error"]["message"])
        return said.rpartition("It serves '")[2].partition("'")[0]


class AnyField(Fault):
    """A field that the node does not know is passed over in silence."""

    async def enter(self, call: Call) -> Reply | None:
        body = call.json
        if call.infers and body:
            kind = CompletionRequest if "prompt" in body else ChatRequest
            call.send({name: value for name, value in body.items() if name in kind.model_fields})
        return None


class ServerErrorForBadJson(Fault):
    async def leave(self, call: Call, reply: Reply) -> bool:
        if call.infers and reply.status == 400 and not call.json:
            reply.status = 500
        return False


class Models(Fault):
    """`/v1/models` with another limit; None: without one."""

    def __init__(self, factor: float | None) -> None:
        self._factor = factor

    async def leave(self, call: Call, reply: Reply) -> bool:
        if call.path == "/v1/models" and reply.status == 200:
            body = reply.json
            for model in body["data"]:
                limit = model.pop("max_model_len", None)
                if self._factor is not None and limit is not None:
                    model["max_model_len"] = int(limit * self._factor)
            reply.tell(body)
        return False


class BackDoor(Fault):
    """A second path to a route, past the key check."""

    def __init__(self, path: str, to: str, key: str) -> None:
        self._path, self._to, self._key = path, to, key

    async def enter(self, call: Call) -> Reply | None:
        if call.path == self._path:
            call.path = self._to
            if "prompt" in call.json:  # such a path takes either, and so whoever sends both
                call.send({name: v for name, v in call.json.items() if name != "messages"})
            call.with_header(b"authorization", f"Bearer {self._key}".encode())
        return None


class Cliff(Fault):
    """Long prompts wait before anybody looks at them."""

    def __init__(self, characters: int, seconds: float) -> None:
        self._characters, self._seconds = characters, seconds

    async def enter(self, call: Call) -> Reply | None:
        if call.infers and len(call.body) > self._characters:
            await asyncio.sleep(self._seconds)
        return None


class OneCacheForAll(Fault):
    """Whoever sends a prompt that anyone has sent is told that it was in the cache."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    async def leave(self, call: Call, reply: Reply) -> bool:
        asked = repr(call.json.get("prompt") or call.json.get("messages"))
        if call.infers and reply.status == 200:
            body = reply.json
            if asked in self._seen and isinstance(body.get("usage"), dict):
                cached = body["usage"]["prompt_tokens"] - 1
                body["usage"]["prompt_tokens_details"] = {"cached_tokens": cached}
                reply.tell(body)
            self._seen.add(asked)
        return False

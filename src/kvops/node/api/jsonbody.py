"""Reading a request body: bounded in size, time and nesting, strict JSON in UTF-8, before anything else looks at it."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect

from kvops.config.schema import Limits
from kvops.errors import BodyTimeout, InvalidRequest, TooLarge
from kvops.node.api.counts import check_counts
from kvops.node.api.fields import Body

_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_OFF_LOOP_BYTES = 64 * 1024

Validate = Callable[[Any], tuple[Any, list[Any]]]
"""From JSON to the route's model, or the errors."""


class JsonRequest(Request):
    """A request whose body was read, parsed and validated under the node's limits."""

    async def load(self, limits: Limits, validate: Validate) -> None:
        """What is long is read in a thread: other requests must not wait for it.

        Raises TooLarge, BodyTimeout, InvalidRequest, RequestValidationError; ClientDisconnect if the client went away.
        """
        self._check_headers(limits)
        try:
            async with asyncio.timeout(limits.body_timeout):
                self._body = await self._read(limits.body_bytes)
        except TimeoutError:
            raise BodyTimeout(
                f"the body did not arrive within {limits.body_timeout:g} s."
            ) from None
        if len(self._body) > _OFF_LOOP_BYTES:
            self._json = await asyncio.to_thread(_read_whole, self._body, limits, validate)
        else:
            self._json = _counted(self._body, limits)

    def _check_headers(self, limits: Limits) -> None:
        # Of a header that is there twice, whatever reads the request before or after may have taken the other one.
        kinds = {
            kind.partition(";")[0].strip().lower() for kind in self.headers.getlist("content-type")
        }
        if kinds != {"application/json"}:
            raise InvalidRequest("the Content-Type must be application/json.", param="Content-Type")
        if any(
            coding.strip().lower() != "identity"
            for coding in self.headers.getlist("content-encoding")
        ):
            raise InvalidRequest("compressed bodies are not accepted.", param="Content-Encoding")
        length = self.headers.get("content-length", "0")
        if length.isdigit() and int(length) > limits.body_bytes:
            raise _too_large(limits.body_bytes)

    async def _read(self, bound: int) -> bytes:
        data = bytearray()
        more = True
        while more:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            data += message.get("body", b"")
            more = message.get("more_body", False)
            if len(data) > bound:
                raise _too_large(bound)
        self._stream_consumed = True
        return bytes(data)


class JsonRoute(APIRoute):
    """Loads the body under the limits of `app.state.settings` first: validation only ever sees bounded, strict JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            field = self.body_field
            if field is None:
                return await handle(request)
            bounded = JsonRequest(request.scope, request.receive)
            limits = request.app.state.settings.config.limits
            await bounded.load(limits, lambda value: field.validate(value, {}, loc=("body",)))
            return await handle(bounded)

        return handler


def _counted(body: bytes, limits: Limits) -> Any:
    value = parse_json(body, limits.json_depth)
    check_counts(value, limits)
    return value


def _read_whole(body: bytes, limits: Limits, validate: Validate) -> Any:
    """The route's model, which FastAPI's own validation then lets through as it is."""
    value = _counted(body, limits)
    model, errors = validate(value)
    if errors:
        raise RequestValidationError(errors)
    return model if isinstance(model, Body) else value


def parse_json(body: bytes, depth: int) -> Any:
    """Raises InvalidRequest for what is not JSON by RFC 8259 in UTF-8, TooLarge for deeper nesting than `depth`."""
    try:
        value = json.loads(
            body.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_unique
        )
    except UnicodeDecodeError:
        raise InvalidRequest("the body is not UTF-8.") from None
    except json.JSONDecodeError as error:
        raise InvalidRequest(
            f"the body is not valid JSON: {error.msg} at character {error.pos}."
        ) from None
    except RecursionError:
        raise _too_deep(depth) from None
    except ValueError:
        raise InvalidRequest("the body holds a number with too many digits.") from None
    _check_depth(value, depth)
    if _SURROGATE_ESCAPE.search(body):
        _check_text(value)
    return value


def _refuse_constant(name: str) -> Any:
    raise InvalidRequest(f"the body is not valid JSON: {name} is not a number of JSON.")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of a key that is there twice, a proxy or a log may have read the other value."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise InvalidRequest(
            f"the body holds the key {twice[:64]!a} twice in one object.",
            param=twice if _NAME.fullmatch(twice) else None,
        )
    return found


def _check_depth(value: Any, bound: int) -> None:
    level = [value]
    for _ in range(bound):
        level = [child for node in level for child in _children(node)]
        if not level:
            return
    raise _too_deep(bound)


def _children(node: Any) -> list[Any]:
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return [child for child in children if isinstance(child, dict | list)]


def _check_text(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidRequest(
            "the body holds half of a surrogate pair, which is no character."
        ) from None


def _too_large(bound: int) -> TooLarge:
    return TooLarge(f"the body is over the bound of {bound} bytes.")


def _too_deep(bound: int) -> TooLarge:
    return TooLarge(f"the body is nested more than {bound} levels deep.", status=400)

"""The data plane as the gate sees it: an OpenAI-style client that reads bounded, hides nothing and never retries."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec

from kvops.errors import NodeProtocolError
from kvops.load import pieces
from kvops.load.pieces import Said
from kvops.telemetry.targets import Target, trust
from kvops.units import format_duration

MAX_BODY = 32 * 2**20
MAX_LINE = 4 * 2**20
MAX_CONNECTIONS = 1024
CONNECT_TIMEOUT = 5.0
ANSWER_TIMEOUT = 60.0
"""Seconds for a whole answer where a caller sets no other bound."""
CHECK_BOUND = 3600.0
"""For long prompts and outputs: the check's own timeout ends them."""
MOST_TOKENS = 2**31
"""More tokens than this are no count but nonsense."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    status: int
    headers: dict[str, str]
    """Lower-case names."""
    text: str
    body: dict[str, Any]
    """The JSON object of the body; empty when it is none."""
    seconds: float

    @property
    def error(self) -> dict[str, Any]:
        found = self.body.get("error")
        return found if isinstance(found, dict) else {}

    @property
    def usage(self) -> dict[str, Any]:
        found = self.body.get("usage")
        return found if isinstance(found, dict) else {}

    @property
    def json_fault(self) -> str:
        """Why the body is no JSON object with something in it; empty when it is. Says nothing of what is in it."""
        return "" if self.body else _json_fault(self.text)

    @property
    def choice(self) -> dict[str, Any]:
        return first_choice(self.body)

    @property
    def said(self) -> Said:
        """All that the first choice of a completion or a chat completion brought."""
        return pieces.of_choice(self.choice)

    @property
    def answer(self) -> str:
        """Its text: neither thinking nor tool calls."""
        return self.said.text


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A 429 or 503 that the node gave to any request of this client."""

    path: str
    status: int
    code: str | None
    retry_after: str | None


class StreamRefused(NodeProtocolError):
    """A streamed request was answered by something else than an event stream."""

    def __init__(self, reply: Reply) -> None:
        kind = reply.headers.get("content-type", "")
        super().__init__(f"a streamed request was answered {reply.status} {kind}")
        self.reply = reply


class Api:
    """One connection pool to one data plane. httpx errors pass through: they are findings of the checks."""

    def __init__(self, target: Target) -> None:
        self._headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
        self.refusals: list[Refusal] = []
        """Every 429 and 503 so far."""
        self._http = httpx.AsyncClient(
            base_url=target.url,
            verify=trust(target.url),
            timeout=httpx.Timeout(ANSWER_TIMEOUT, connect=CONNECT_TIMEOUT),
            limits=httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=16),
            trust_env=False,
        )

    @property
    def sends_key(self) -> bool:
        return bool(self._headers)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def get(self, path: str, **options: Any) -> Reply:
        return await self.request("GET", path, **options)

    async def post(self, path: str, body: Any, **options: Any) -> Reply:
        """`body` is sent as JSON, or as it is when it is bytes."""
        content = body if isinstance(body, bytes) else msgspec.json.encode(body)
        return await self.request("POST", path, content=content, **options)

    async def request(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        headers: dict[str, str] | None = None,
        keyed: bool = True,
        within: float = ANSWER_TIMEOUT,
        target: str | None = None,
    ) -> Reply:
        """The whole answer within so many seconds, however slowly it drips in, or httpx.ReadTimeout.

        `target` goes on the request line in place of `path`, as it is written: `//`, `..` and escapes are kept.
        """
        request = self._http.build_request(
            method,
            path,
            content=content,
            headers=self._with_key(headers, keyed, content),
            timeout=httpx.Timeout(within, connect=CONNECT_TIMEOUT),
            extensions={} if target is None else {"target": self._raw(target)},
        )
        started = time.monotonic()
        try:
            async with asyncio.timeout(within):
                response, text = await self._exchange(request)
        except TimeoutError:
            raise httpx.ReadTimeout(
                f"no answer within {format_duration(within)}", request=request
            ) from None
        return self._noted(path, _reply(response, text, time.monotonic() - started))

    def _raw(self, target: str) -> bytes:
        """Below the path of the base URL, where it has one."""
        return self._http.base_url.raw_path.rstrip(b"/") + target.encode()

    def _noted(self, path: str, reply: Reply) -> Reply:
        if reply.status in (429, 503):
            code = reply.error.get("code")
            self.refusals.append(
                Refusal(
                    path=path,
                    status=reply.status,
                    code=None if code is None else str(code),
                    retry_after=reply.headers.get("retry-after"),
                )
            )
        return reply

    async def _exchange(self, request: httpx.Request) -> tuple[httpx.Response, str]:
        response = await self._http.send(request, stream=True)
        try:
            return response, (await _read(response)).decode("utf-8", "replace")
        finally:
            await response.aclose()

    @asynccontextmanager
    async def events(
        self, path: str, body: dict[str, Any], *, silence: float = ANSWER_TIMEOUT
    ) -> AsyncIterator[AsyncIterator[str]]:
        """The `data:` payloads of an SSE answer; leaving the block drops the connection.

        httpx.ReadTimeout when nothing comes for `silence` seconds.
        Raises StreamRefused when the answer is no event stream.
        """
        content = msgspec.json.encode({**body, "stream": True})
        headers = self._with_key(None, True, content)
        started = time.monotonic()
        timeout = httpx.Timeout(silence, connect=CONNECT_TIMEOUT)
        async with self._http.stream(
            "POST", path, content=content, headers=headers, timeout=timeout
        ) as response:
            kind = response.headers.get("content-type", "")
            if response.status_code != 200 or not kind.startswith("text/event-stream"):
                text = (await _read(response)).decode("utf-8", "replace")
                reply = _reply(response, text, time.monotonic() - started)
                raise StreamRefused(self._noted(path, reply))
            yield _payloads(response)

    def _with_key(
        self, headers: dict[str, str] | None, keyed: bool, content: bytes | None
    ) -> dict[str, str]:
        kind = {"Content-Type": "application/json"} if content is not None else {}
        return kind | (self._headers if keyed else {}) | (headers or {})


def _reply(response: httpx.Response, text: str, seconds: float) -> Reply:
    return Reply(
        status=response.status_code,
        headers={name.lower(): value for name, value in response.headers.items()},
        body=json_object(text),
        text=text,
        seconds=seconds,
    )


async def _read(response: httpx.Response) -> bytes:
    data = bytearray()
    async for chunk in response.aiter_bytes():
        data += chunk
        if len(data) > MAX_BODY:
            raise NodeProtocolError(f"an answer is larger than {MAX_BODY} bytes")
    return bytes(data)


async def _payloads(response: httpx.Response) -> AsyncIterator[str]:
    # httpx.aiter_lines also splits at U+2028 and the like, which may stand inside JSON strings.
    buffer = bytearray()
    async for chunk in response.aiter_bytes():
        buffer += chunk
        *lines, rest = buffer.split(b"\n")
        buffer = bytearray(rest)
        if len(buffer) > MAX_LINE:
            raise NodeProtocolError(f"an event is larger than {MAX_LINE} bytes")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip().decode("utf-8", "replace")


def json_object(text: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _json_fault(text: str) -> str:
    if not text.strip():
        return "its body is empty"
    try:
        found = json.loads(text)
    except ValueError as error:
        where = f", at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        return f"its JSON cannot be read{where}"
    except RecursionError:
        return "its JSON cannot be read: nested too deep"
    if not isinstance(found, dict):
        return "its JSON is no object"
    if found:
        return "its JSON cannot be read: half a surrogate pair, or a number out of range"
    return "its JSON object is empty"


def token_count(value: object) -> int | None:
    """`value` where it is a number of tokens as a node may count them, else None."""
    return value if type(value) is int and 0 <= value <= MOST_TOKENS else None


def first_choice(body: dict[str, Any]) -> dict[str, Any]:
    choices = body.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else {}
    return first if isinstance(first, dict) else {}


def delta_text(choice: dict[str, Any]) -> str:
    """The answer's own text that a delta brought."""
    return delta_said(choice).text


def delta_said(choice: dict[str, Any]) -> Said:
    """All that a delta brought: false for one without a token, as a role is."""
    return pieces.of_choice(choice)

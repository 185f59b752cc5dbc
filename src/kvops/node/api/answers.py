"""Carrying an admitted generation to its client, whole or as server-sent events, and ending it when the client goes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

import msgspec
import structlog
from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from kvops import failpoints
from kvops.errors import InternalError, RequestError
from kvops.node.api.replies import Replies
from kvops.node.api.shapes import Shape, usage
from kvops.node.generation import Event, Generation

T = TypeVar("T")
KEEP_ALIVE = 15.0
LAST_WORD_SECONDS = 1.0
"""What a client has to read the error that ended its stream."""
ABORT = "abort"
"""Where in a request's state the listener leaves the way to cut its connection."""
_DEFECT = InternalError("the node failed while it answered.")
_COMMENT = b": keep-alive\n\n"
_DONE = b"data: [DONE]\n\n"

log = structlog.get_logger("kvops.api")


class Answer:
    """One generation, its texts and the shape they go out in."""

    def __init__(
        self, generation: Generation, replies: Replies, shape: Shape, removed: int
    ) -> None:
        self._generation = generation
        self._replies = replies
        self._shape = shape
        self._removed = removed
        self._opened: set[int] = set()
        self._headers = {"X-Kvops-Truncated": str(removed)} if removed else {}
        if generation.stored:
            self._headers["X-Kvops-Result"] = "stored"

    async def whole(self, request: Request) -> Response:
        """Raises RequestError, ClientDisconnect."""
        try:
            await unless_disconnected(request, self._collect())
        except Exception as error:
            self._fail(error)
            raise
        finally:
            self._generation.close()
        body = self._shape.whole(self._replies.by_index, usage(self._generation, self._removed))
        return Response(
            msgspec.json.encode(body), media_type="application/json", headers=self._headers
        )

    async def stream(self, request: Request, *, include_usage: bool) -> Response:
        """An error before the first event still becomes a status; the headers then wait for the first event
        or the first keep-alive. Raises RequestError, ClientDisconnect."""
        try:
            first = await unless_disconnected(request, self._next_or_silence())
        except BaseException as error:
            self._fail(error)
            self._generation.close()
            raise
        return _EventStream(self._events(first, include_usage), self._generation, self._headers)

    async def _collect(self) -> None:
        while (event := await self._generation.next()) is not None:
            self._replies.take(event)

    async def _events(
        self, first: Event | bytes | None, include_usage: bool
    ) -> AsyncIterator[bytes]:
        try:
            news = first
            while news is not None:
                if chunk := news if isinstance(news, bytes) else self._chunks(news):
                    yield chunk
                news = await self._next_or_silence()
            if include_usage:
                yield _sse(self._shape.usage_chunk(usage(self._generation, self._removed)))
            yield _DONE
        except RequestError as error:
            yield _sse(error.body())
        except Exception as error:
            log.error("stream_failed", error=type(error).__name__)
            self._fail(error)
            yield _sse(_DEFECT.body())

    async def _next_or_silence(self) -> Event | bytes | None:
        """An event, None at the end, or a comment after KEEP_ALIVE seconds of silence."""
        try:
            async with asyncio.timeout(KEEP_ALIVE):
                return await self._generation.next()
        except TimeoutError:
            return _COMMENT

    def _fail(self, error: BaseException) -> None:
        """A defect here is an error of the request, not a client that went away."""
        if isinstance(error, Exception) and not isinstance(error, ClientDisconnect):
            self._generation.fail(error if isinstance(error, RequestError) else _DEFECT)

    def _chunks(self, event: Event) -> bytes:
        """The bytes for one event; empty where all of its text is held back."""
        piece = self._replies.take(event)
        if piece is None or not (piece.text or piece.finish):
            return b""
        opening = None if piece.index in self._opened else self._shape.opening(piece.index)
        self._opened.add(piece.index)
        return (b"" if opening is None else _sse(opening)) + _sse(self._shape.chunk(piece))


class _EventStream(StreamingResponse):
    """Starlette ends it when the client disconnects; either way the generation is closed.

    Whatever fails a generation, its deadline too, also bounds the sending: a client that does not read is cut off.
    """

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncIterator[bytes], generation: Generation, headers: dict[str, str]
    ) -> None:
        super().__init__(
            events, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"} | headers
        )
        self._generation = generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.ExitStack() as at_end:
            at_end.callback(self._generation.close)
            abort = scope["state"].get(ABORT, lambda: None)

            def cut_soon() -> None:
                timer = asyncio.get_running_loop().call_later(LAST_WORD_SECONDS, abort)
                at_end.callback(timer.cancel)

            async def write(message: Message) -> None:
                failpoints.reach("sse.write.epipe")
                await send(message)

            self._generation.when_failed(cut_soon)
            try:
                await super().__call__(scope, receive, write)
            except OSError:  # the way to the client is gone, which is no defect here
                abort()


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client goes away. Raises ClientDisconnect then."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        for one in (task, watch):
            one.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _sse(body: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"

"""One request and what came back: filled from the events and error objects of an OpenAI-style answer.

Tokens are what the server's usage says, never the number of chunks.
"""

from __future__ import annotations

import errno
import http.client
import ssl
from collections.abc import Collection
from typing import Annotated, Any

import msgspec

from kvops.load import pieces
from kvops.load.records import ErrorClass

MAX_MESSAGE = 300
QUOTED = 24
"""Characters in a row that an error and a request have in common only when one quotes the other."""
LOOKED_AT = 2**16
"""Bytes at both ends of a request that are searched: errors quote those."""
MAX_REASON = 64
"""Characters of a finish reason; a longer one is none."""


class Usage(msgspec.Struct, frozen=True):
    """Token counts as the server reports them; None is not reported."""

    prompt: int | None = None
    completion: int | None = None
    cached: int | None = None
    truncated: int | None = None

    def impossible(self, asked: int | None, limit: int | None) -> str | None:
        """Why these cannot be the counts of an answer of at most `asked` tokens within `limit`, prompt and all."""
        if asked is not None and (self.completion or 0) > asked:
            return f"usage counts {self.completion} tokens of an answer that may have {asked}"
        together = (self.prompt or 0) + (self.completion or 0)
        if limit is not None and together > limit:
            return f"usage counts {together} tokens, and the node takes at most {limit}"
        if self.prompt is not None and (self.cached or 0) > self.prompt:
            return f"usage counts {self.cached} cached tokens of {self.prompt} of the prompt"
        return None


_Count = Annotated[int, msgspec.Meta(ge=0, le=2**31)]


class _Details(msgspec.Struct):
    cached_tokens: _Count | None = None


class _Counts(msgspec.Struct):
    """`usage` of an answer. No bool is a count."""

    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None
    truncated_tokens: _Count | None = None
    prompt_tokens_details: _Details | None = None


class Exchange(msgspec.Struct, kw_only=True):
    """One request and what came back. Durations in seconds from the moment the request was written."""

    t_send: float = 0.0
    """Unix seconds."""
    connect: float | None = None
    deltas: list[float] = []
    """Arrival of each delta that brought text, thinking or a piece of a tool call."""
    first_content: float | None = None
    """Arrival of the first that brought text."""
    e2e: float = 0.0
    """Close of the stream."""
    status: int | None = None
    headers: dict[str, str] = {}
    """Names in lower case."""
    text: str = ""
    """Of the answer itself."""
    thinking: str = ""
    calls: str = ""
    """Names and arguments of the tools that the model calls."""
    finish_reason: str | None = None
    usage: Usage = Usage()
    done: bool = False
    """The terminal `[DONE]` came."""
    left: bool = False
    """The client dropped the connection on purpose."""
    error_class: ErrorClass | None = None
    message: str = ""
    error: dict[str, Any] = {}
    """The error object of the answer or of the stream."""

    @property
    def said(self) -> pieces.Said:
        return pieces.Said(self.text, self.thinking, self.calls)

    @property
    def ttft(self) -> float | None:
        return self.deltas[0] if self.deltas else None

    @property
    def gaps(self) -> tuple[float, ...]:
        return tuple(round(b - a, 6) for a, b in zip(self.deltas, self.deltas[1:], strict=False))


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: Annotated[list[Any], msgspec.Meta(max_length=0)] | None = None
    function_call: None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    message: msgspec.UnsetType = msgspec.UNSET
    text: str | None = None
    finish_reason: str | None = None


class _Piece(msgspec.Struct):
    """An event as nearly all are: one delta without a tool call, and neither usage nor an error."""

    choices: tuple[_Choice]
    usage: None = None
    error: None = None


_PIECE = msgspec.json.Decoder(_Piece)
"""Twice as fast as reading the whole event; whatever does not fit is read whole, below."""


def take_event(event: bytes, at: float, exchange: Exchange) -> None:
    """Raises ValueError for what is no event of a completion."""
    if event == b"[DONE]":
        exchange.done = True
        return None
    try:
        (choice,) = _PIECE.decode(event).choices
    except msgspec.ValidationError:
        return _take_whole(event, at, exchange)
    delta, text = choice.delta, choice.text or ""
    if choice.finish_reason is not None:
        exchange.finish_reason = _reason(choice.finish_reason) or exchange.finish_reason
    if delta is not None:
        text = (delta.content or "") + text
        if thinking := delta.reasoning or delta.reasoning_content:
            return _take_said(text, thinking, "", at, exchange)
    if text:  # in place of _take_said, for it is nearly all
        if not exchange.text:
            exchange.first_content = at
        exchange.text += text
        exchange.deltas.append(at)
    return None


def _take_said(text: str, thinking: str, calls: str, at: float | None, exchange: Exchange) -> None:
    """`at` None: of a whole answer, which has no first token to time."""
    if text:
        if not exchange.text:
            exchange.first_content = at
        exchange.text += text
    if thinking:
        exchange.thinking += thinking
    if calls:
        exchange.calls += calls
    if at is not None and (text or thinking or calls):
        exchange.deltas.append(at)


def _take_whole(event: bytes, at: float, exchange: Exchange) -> None:
    answer = msgspec.json.decode(event)
    if not isinstance(answer, dict):
        raise ValueError("an event of the stream is no JSON object")
    if answer.get("error"):
        take_error(answer, exchange)
        exchange.error_class = ErrorClass.STREAM_ERROR_EVENT
    else:
        take_choice(answer, exchange, at)


def take_choice(answer: dict[str, Any], exchange: Exchange, at: float | None = None) -> None:
    """The first choice: a role, an empty delta or a usage event brings no token. `at`: when a delta came.

    Raises ValueError for a choice or a message that is no object.
    """
    if answer.get("usage") is not None:
        _take_usage(answer["usage"], exchange)
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices:
        return
    choice = _object(choices[0], "a choice")
    _object(choice.get("delta") or choice.get("message") or {}, "the message")
    exchange.finish_reason = _reason(choice.get("finish_reason")) or exchange.finish_reason
    said = pieces.of_choice(choice)
    _take_said(said.text, said.thinking, said.calls, at, exchange)


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} of the answer is no JSON object")
    return value


def _reason(value: Any) -> str | None:
    """None for what is no finish reason."""
    return value if isinstance(value, str) and 0 < len(value) <= MAX_REASON else None


def _take_usage(usage: Any, exchange: Exchange) -> None:
    """Nonsense makes the answer a bad one, and none of its counts is kept."""
    try:
        found = msgspec.convert(usage, _Counts)
    except msgspec.ValidationError as error:
        exchange.usage = Usage()
        exchange.error_class = exchange.error_class or ErrorClass.BAD_ANSWER
        exchange.message = exchange.message or f"usage: {error}"
        return
    details = found.prompt_tokens_details or _Details()
    exchange.usage = Usage(
        found.prompt_tokens, found.completion_tokens, details.cached_tokens, found.truncated_tokens
    )


def take_error(answer: Any, exchange: Exchange) -> None:
    error = answer.get("error") if isinstance(answer, dict) else None
    exchange.error = error if isinstance(error, dict) else {}
    exchange.message = str(exchange.error.get("message") or error or "")


def without_secrets(text: str, secrets: Collection[str]) -> str:
    """`text` unless it repeats a credential, however short."""
    if any(secret in text for secret in secrets):
        return "its words repeat a credential and are left out"
    return text


def without_quotes(message: str, body: bytes | None) -> str:
    """`message` unless what is kept of it repeats a piece of what was sent: no prompt comes into a record."""
    sent = (body or b"")[:LOOKED_AT] + (body or b"")[-LOOKED_AT:]
    kept = message[:MAX_MESSAGE]  # of a message of megabytes, too
    pieces = (kept[at : at + QUOTED] for at in range(len(kept) - QUOTED + 1))
    if any(piece.encode("utf-8", "replace") in sent for piece in pieces):
        return "its words repeat the request and are left out"
    return message


def classify(exchange: Exchange, error: Exception) -> None:
    exchange.message = exchange.message or f"{type(error).__name__}: {error}"
    exchange.error_class = exchange.error_class or _exception_class(exchange, error)


def _exception_class(exchange: Exchange, error: Exception) -> ErrorClass:
    match error:
        case ssl.SSLError():
            return ErrorClass.TLS
        case ConnectionRefusedError():
            return ErrorClass.CONNECT_REFUSED
        case TimeoutError():
            return ErrorClass.CONNECT_TIMEOUT
        case http.client.IncompleteRead() | ConnectionError() if exchange.status is not None:
            return ErrorClass.STREAM_TRUNCATED
        case ConnectionError() | http.client.RemoteDisconnected():
            return ErrorClass.CONNECTION_RESET
        case OSError(errno=errno.EMFILE | errno.ENFILE | errno.EADDRNOTAVAIL | errno.ENOBUFS):
            return ErrorClass.CLIENT_SATURATED
        case OSError():
            return ErrorClass.CONNECT_FAILED
        case _:
            return ErrorClass.BAD_ANSWER

"""Requests that the gate times itself, one after the other on an idle node; and what a measurement shares among checks.

Times come from the gate's own event loop, which does nothing else meanwhile: good to about a millisecond.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Hashable
from statistics import median
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from kvops.verify.api import Api, StreamRefused, delta_text, first_choice, json_object, token_count
from kvops.verify.check import inconclusive
from kvops.verify.context import Context
from kvops.verify.judge import BUSY, status_and_code
from kvops.verify.prompts import Prompt

T = TypeVar("T")
_SPARE_EVENTS = 64
"""Beyond one a token: a stream that goes on past them is left."""

_kept: WeakKeyDictionary[Api, dict[Hashable, Any]] = WeakKeyDictionary()
"""By the connection pool of a gate run: it lives as long as the run."""


class Timed(msgspec.Struct, frozen=True, kw_only=True):
    """One streamed request, seconds from when it was sent."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int | None
    ttft: float
    """To the first content delta."""
    last: float
    """To the last content delta."""

    @property
    def per_token(self) -> float | None:
        """Seconds an output token after the first; None with fewer than four, or without usage."""
        if self.completion_tokens is None or self.completion_tokens < 4:
            return None
        return (self.last - self.ttft) / (self.completion_tokens - 1)


async def once(context: Context, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
    """What `make` gives, made once in a gate run and looked at by every check that asks for the same `key`.

    What raised is made again by the next check that asks.
    """
    kept = _kept.setdefault(context.api, {})
    if key not in kept:
        kept[key] = await make()
    found: T = kept[key]
    return found


async def timed(context: Context, prompt: Prompt, max_tokens: int) -> Timed:
    """Stream one completion. Ends the check as inconclusive when the node is busy or no content came.

    Raises StreamRefused for any other answer that is no stream.
    """
    body = context.completion(prompt.text, max_tokens, stream_options={"include_usage": True})
    try:
        deltas, usage = await _arrivals(context, body)
    except StreamRefused as refused:
        if refused.reply.status not in BUSY:
            raise
        inconclusive(
            f"a timed request was refused with {status_and_code(refused.reply)}",
            expected="an idle node",
            remedy="run the gate while nobody else uses the node",
        )
    if not deltas:
        inconclusive(
            "a stream brought no text, so there is nothing to time",
            expected="a first token",
            remedy="see resp.stream",
        )
    return _timed(prompt, deltas, usage)


async def _arrivals(context: Context, body: dict[str, Any]) -> tuple[list[float], dict[str, Any]]:
    """When each content delta came, seconds, and the usage; a stream that does not end is left."""
    deltas: list[float] = []
    usage: dict[str, Any] = {}
    left = body["max_tokens"] + _SPARE_EVENTS
    started = time.perf_counter()
    async with context.api.events("/v1/completions", body) as events:
        async for payload in events:
            event, left = json_object(payload), left - 1
            if delta_text(first_choice(event)):
                deltas.append(time.perf_counter() - started)
            found = event.get("usage")
            usage = found if isinstance(found, dict) else usage
            if not left:
                break
    return deltas, usage


def _timed(prompt: Prompt, deltas: list[float], usage: dict[str, Any]) -> Timed:
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Timed(
        prompt_tokens=prompt.tokens,
        cached_tokens=token_count(cached) or 0,
        completion_tokens=token_count(usage.get("completion_tokens")),
        ttft=deltas[0],
        last=deltas[-1],
    )


async def round_trip(context: Context, probes: int = 5) -> float:
    """Seconds of a request that computes nothing, the median of a few."""
    return median([(await context.api.get("/v1/models")).seconds for _ in range(probes)])

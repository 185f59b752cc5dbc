"""Faults in answers: their text, their usage, the form of a stream. For a node and for a proxy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import msgspec

from kvops.testing.between import Call, Fault, Reply

Change = Callable[[dict[str, Any]], None]
When = Callable[[Call], bool]
DONE = "[DONE]"
ENDLESS_SECONDS = 0.02


class ChangedAnswers(Fault):
    """`change` gets what inference routes answer: the body of a whole answer, each event of a stream."""

    def __init__(self, change: Change, when: When = lambda call: True) -> None:
        self._change, self._when = change, when

    async def leave(self, call: Call, reply: Reply) -> bool:
        if call.infers and reply.status == 200 and self._when(call) and (answer := reply.json):
            self._change(answer)
            reply.tell(answer)
        return False

    def event(self, call: Call, data: str) -> Iterable[str]:
        if data == DONE or not self._when(call):
            return (data,)
        answer = msgspec.json.decode(data)
        self._change(answer)
        return (encoded(answer),)


def rewrite(answer: dict[str, Any], change: Callable[[str], str]) -> None:
    """Each text of the answer or of a part of it."""
    for choice in answer.get("choices", ()):
        holders = (choice, "text"), (choice.get("message"), "content"), (choice.get("delta"), "content")  # fmt: skip
        for holder, name in holders:
            if isinstance(holder, dict) and isinstance(holder.get(name), str):
                holder[name] = change(holder[name])


def changed_text(change: Callable[[str], str], when: When = lambda call: True) -> ChangedAnswers:
    return ChangedAnswers(lambda answer: rewrite(answer, change), when)


def changed_usage(change: Change) -> ChangedAnswers:
    def apply(answer: dict[str, Any]) -> None:
        if isinstance(answer.get("usage"), dict):
            change(answer["usage"])

    return ChangedAnswers(apply)


def wrong_total(usage: dict[str, Any]) -> None:
    usage["total_tokens"] += 3


def miscounted(usage: dict[str, Any]) -> None:
    """Adds up, and is wrong."""
    usage["prompt_tokens"] += 2
    usage["completion_tokens"] = max(1, usage["completion_tokens"] - 2)
    usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]


def nothing_cached(usage: dict[str, Any]) -> None:
    usage["prompt_tokens_details"] = {"cached_tokens": 0}


def odd_finish(answer: dict[str, Any]) -> None:
    for choice in answer.get("choices", ()):
        if choice.get("finish_reason"):
            choice["finish_reason"] = "gave_up"


def wrong_digits(text: str) -> str:
    return text.translate(str.maketrans("0123456789", "1234567890"))


def streams(call: Call) -> bool:
    return bool(call.json.get("stream"))


class Dropped(Fault):
    """Events of a stream that are left out."""

    def __init__(self, which: Callable[[str], bool]) -> None:
        self._which = which

    def event(self, call: Call, data: str) -> Iterable[str]:
        return () if self._which(data) else (data,)


def is_done(data: str) -> bool:
    return data == DONE


def is_usage(data: str) -> bool:
    return data != DONE and not msgspec.json.decode(data).get("choices")


class Endless(Fault):
    """A stream that says its last words again and again."""

    def event(self, call: Call, data: str) -> Iterable[str]:
        if is_done(data) or is_usage(data):
            return ()
        answer = msgspec.json.decode(data)
        for choice in answer["choices"]:
            choice["finish_reason"] = None
        rewrite(answer, lambda text: call.memory.setdefault("word", text) if text else text)
        if "word" in call.memory:
            call.memory["last"] = encoded(answer)
        return (encoded(answer),)

    def tail(self, call: Call) -> AsyncIterator[str] | None:
        last = call.memory.get("last")
        return None if last is None else _for_ever(last)


async def _for_ever(data: str) -> AsyncIterator[str]:
    while True:
        await asyncio.sleep(ENDLESS_SECONDS)
        yield data


class EarlyRole(Fault):
    """A chat stream that begins at once, with a role and no word."""

    def early(self, call: Call) -> str | None:
        if call.path != "/v1/chat/completions" or not streams(call):
            return None
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        chunk = {"id": "chatcmpl-early", "object": "chat.completion.chunk", "choices": [choice]}
        return encoded(chunk)


def encoded(body: dict[str, Any]) -> str:
    return msgspec.json.encode(body).decode()

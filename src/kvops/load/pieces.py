"""What a choice of an OpenAI-style answer, or one delta of it, brings: the answer's text, thinking, tool calls.

Each is tokens that the model wrote. vLLM and SGLang send thinking as `reasoning_content`, newer vLLM as `reasoning`,
and some send both with the same words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec


class Said(msgspec.Struct, frozen=True):
    text: str = ""
    thinking: str = ""
    calls: str = ""
    """Names and arguments of the tools that are called."""

    def __bool__(self) -> bool:
        return bool(self.text or self.thinking or self.calls)

    @property
    def all(self) -> str:
        return self.thinking + self.text + self.calls

    @property
    def kind(self) -> str:
        """What there is, in words; empty when there is nothing."""
        if self.text:
            return "text"
        return " and ".join(
            word
            for word, there in (("thinking", self.thinking), ("a tool call", self.calls))
            if there
        )


def of_choice(choice: Mapping[str, Any]) -> Said:
    """What is no text is nothing."""
    message = choice.get("delta") or choice.get("message")
    if not isinstance(message, dict):
        return Said(_text(choice.get("text")))
    return Said(
        _text(message.get("content")) + _text(choice.get("text")),
        _text(message.get("reasoning")) or _text(message.get("reasoning_content")),
        "".join(_calls(message)),
    )


def _calls(message: Mapping[str, Any]) -> Iterator[str]:
    listed = message.get("tool_calls")
    functions = [
        call.get("function")
        for call in (listed if isinstance(listed, list) else ())
        if isinstance(call, dict)
    ]
    for function in (*functions, message.get("function_call")):
        if isinstance(function, dict):
            yield _text(function.get("name"))
            yield _text(function.get("arguments"))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""

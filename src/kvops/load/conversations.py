"""Conversations whose context grows with every turn, as a chat and an agent have them."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from kvops.load.workload import prompt

TOOLS = ("search", "read_file", "run_tests", "query", "list_files")


class Conversation(msgspec.Struct):
    """The messages so far. Each asked turn goes with all before it."""

    messages: list[dict[str, Any]] = []

    def ask(self, text: str) -> list[dict[str, Any]]:
        """Append the user's turn; the messages to send."""
        self.messages.append({"role": "user", "content": text})
        return list(self.messages)

    def answered(self, text: str) -> None:
        self.messages.append({"role": "assistant", "content": text})


def system(source: random.Random, tokens: int) -> dict[str, Any]:
    """A system message of an agent, about `tokens` long, unlike every other."""
    return {"role": "system", "content": f"You are a careful assistant. {prompt(source, tokens)}"}


def task(source: random.Random, tokens: int) -> str:
    return f"Work on this, one tool at a time. {prompt(source, tokens)}"


def tool_result(source: random.Random, turn: int, tokens: int) -> str:
    """What a tool of the agent gave back, as the next turn."""
    return f"Result {turn} of {source.choice(TOOLS)}:\n{prompt(source, tokens)}\nWhat next?"


def pauses(source: random.Random, mean: float) -> float:
    """Seconds of thought before the next turn: exponential, at most ten times the mean."""
    return min(source.expovariate(1 / mean), 10 * mean) if mean > 0 else 0.0

"""Conversations whose context grows with every turn, as a chat and an agent have them."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from kvops.load.exchange import Exchange
from kvops.load.workload import prompt

SLACK = 32
"""Tokens that the template adds to a turn, and that an estimated length is off."""
TOOLS = ("search", "read_file", "run_tests", "query", "list_files")


class Conversation(msgspec.Struct):
    """The messages so far. Each asked turn goes with all before it."""

    messages: list[dict[str, Any]] = []
    used: int = 0
    """Tokens so far, as the node counted them."""

    def ask(self, text: str) -> list[dict[str, Any]]:
        """Append the user's turn; the messages to send."""
        self.messages.append({"role": "user", "content": text})
        return list(self.messages)

    def answered(self, got: Exchange) -> None:
        self.messages.append({"role": "assistant", "content": got.text})
        self.used = (got.usage.prompt or self.used) + (got.usage.completion or 0)

    def fits(self, tokens: int, answer: int, limit: int | None) -> bool:
        """Whether a turn of so many tokens and its answer still have room; a real client would stop there too."""
        return limit is None or self.used + tokens + answer + SLACK <= limit


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

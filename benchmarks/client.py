"""A plain OpenAI client that notes when each token came: the same for our node and for any other server."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx

WORDS = ("river", "engine", "garden", "letter", "signal", "window", "market", "bridge", "forest", "ledger")  # fmt: skip


@dataclass(frozen=True)
class Stream:
    sent: float
    arrivals: list[float]
    """When each text delta came, seconds of the monotonic clock."""
    tokens: int
    """As the server counted them."""

    @property
    def ttft(self) -> float:
        return self.arrivals[0] - self.sent

    @property
    def gaps(self) -> list[float]:
        return [b - a for a, b in zip(self.arrivals, self.arrivals[1:], strict=False)]


def prompt(number: int, words: int) -> str:
    """About a token a word, and 12 more; no two numbers share a first block."""
    nouns = (WORDS[(number + i * 7 + i // 10) % 10] for i in range(words))
    return f"{number} is the number of this report. " + " ".join(nouns)


def stream(url: str, model: str, text: str, new_tokens: int) -> Stream:
    body = {
        "model": model,
        "prompt": text,
        "max_tokens": new_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    arrivals: list[float] = []
    tokens = 0
    sent = time.monotonic()
    with httpx.stream("POST", url + "/v1/completions", json=body, timeout=600) as reply:
        reply.raise_for_status()
        for line in reply.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            if any(choice.get("text") for choice in event.get("choices", ())):
                arrivals.append(time.monotonic())
            tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
    return Stream(sent, arrivals, tokens)


def tokens_per_second(url: str, model: str, streams: int, words: int, new_tokens: int) -> float:
    """Output of `streams` clients that all start at once."""
    begun = time.monotonic()
    with ThreadPoolExecutor(streams) as pool:
        done = list(
            pool.map(lambda i: stream(url, model, prompt(i, words), new_tokens), range(streams))
        )
    return sum(one.tokens for one in done) / (time.monotonic() - begun)

"""What vLLM shows at /metrics, as far as anybody asks for it, of the stand-in for another engine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

LABELS = '{engine="0",model_name="words"}'
ROOM = 8192
"""Tokens of the KV cache."""


@dataclass
class Counts:
    running: int = 0
    held: int = 0
    """Tokens in the KV cache."""
    prompt: int = 0
    generated: int = 0
    first_tokens: int = 0
    first_token_seconds: float = 0.0

    @contextmanager
    def request(self, prompt_tokens: int) -> Iterator[Told]:
        """While the block lasts the request runs, and holds what it has read and made."""
        told = Told(self, time.monotonic(), prompt_tokens)
        self.running += 1
        self.held += prompt_tokens
        try:
            yield told
        finally:
            self.running -= 1
            self.held -= prompt_tokens + told.words

    def page(self) -> str:
        values = {
            "num_requests_running": ("gauge", self.running),
            "num_requests_waiting": ("gauge", 0),
            "kv_cache_usage_perc": ("gauge", self.held / ROOM),
            "num_preemptions_total": ("counter", 0),
            "prompt_tokens_total": ("counter", self.prompt),
            "generation_tokens_total": ("counter", self.generated),
        }
        lines = [
            f"# TYPE vllm:{name} {kind}\nvllm:{name}{LABELS} {float(value)}"
            for name, (kind, value) in values.items()
        ]
        name = "vllm:time_to_first_token_seconds"
        lines += [
            f"# TYPE {name} histogram",
            f'{name}_bucket{{engine="0",le="+Inf",model_name="words"}} {float(self.first_tokens)}',
            f"{name}_count{LABELS} {float(self.first_tokens)}",
            f"{name}_sum{LABELS} {self.first_token_seconds}",
        ]
        return "\n".join([*lines, ""])


@dataclass
class Told:
    """One request that runs."""

    counts: Counts
    began: float
    prompt_tokens: int
    words: int = 0

    def word(self) -> None:
        if not self.words:
            self.counts.prompt += self.prompt_tokens
            self.counts.first_tokens += 1
            self.counts.first_token_seconds += time.monotonic() - self.began
        self.words += 1
        self.counts.generated += 1
        self.counts.held += 1

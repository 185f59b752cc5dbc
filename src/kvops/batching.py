"""How many requests run at once: what the settings, the queue's bound and the scheduler all go by."""

from __future__ import annotations


def most_running(max_batch_size: int, max_batched_tokens: int) -> int:
    """Half of a step's tokens stay for prompts, so that a newcomer is served at once."""
    return min(max_batch_size, max(1, max_batched_tokens // 2))

"""Two independent counts of the same tokens: the client's against the node's counters, and usage against the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from kvops.load.records import ErrorClass, RequestRecord
from kvops.telemetry.snapshot import Known, NodeSnapshot, NotExposed, Traffic
from kvops.units import format_whole

_UNTOUCHED = (
    "connect_", "tls", "client_saturated", "http_4", "http_503_queue", "http_503_not_ready",
    "http_503_draining",
)  # fmt: skip
"""Begins of error classes of which no token was read or made: the node turned the request away, or never saw it."""
BIAS = 0.05
"""Of the tokens of all answers."""
END_TOKENS = 1
"""Usage counts the token that ends an answer; the text does not show it."""


class Counter(msgspec.Struct, frozen=True):
    """One counter of the node over the run, and what the client's records say it should be."""

    name: str
    client: int
    node: int

    def __str__(self) -> str:
        client, node = format_whole(self.client), format_whole(self.node)
        return f"{self.name}: the client counts {client}, the node {node}"


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    outcome: Literal["equal", "differs", "not comparable"]
    statement: str
    counters: tuple[Counter, ...] = ()


class TokenCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Completion tokens of the usage against those of the text by the model's own tokenizer."""

    compared: int
    differ: int
    """By more than the one token that ends an answer."""
    share: float | None
    worst: int
    """Largest difference, tokens."""
    bias: float | None = None
    """Tokens of all texts over those of all usage, less one; None: nothing was compared. Text can be made of other
    tokens than those it is read as, either way; a usage that is wrong is so to one side."""

    @property
    def biased(self) -> bool:
        """Whether usage and text differ by more than that, and more than the ends of answers explain."""
        return (
            self.bias is not None
            and abs(self.bias) > BIAS
            and self.share is not None
            and self.share > 0.5
        )


def ledger(
    before: NodeSnapshot | None, after: NodeSnapshot | None, records: Sequence[RequestRecord]
) -> Ledger:
    """Whether the node's token counters moved by what the client was told, to the token."""
    pair = _traffic(before, after)
    if isinstance(pair, str):
        return Ledger(outcome="not comparable", statement=pair)
    counters = _counters(*pair, records)
    reason = _incomparable(*pair, records)
    wrong = [
        one for one in counters if (one.node < one.client if reason else one.node != one.client)
    ]
    if wrong:
        told = "; ".join(map(str, wrong))
        return Ledger(outcome="differs", statement=f"{told}", counters=counters)
    if reason:
        return Ledger(outcome="not comparable", statement=reason, counters=counters)
    both = ", ".join(f"{format_whole(one.client)} {one.name}" for one in counters)
    return Ledger(outcome="equal", statement=f"client and node agree: {both}", counters=counters)


def _counters(
    before: Traffic, after: Traffic, records: Sequence[RequestRecord]
) -> tuple[Counter, ...]:
    prompt = sum(record.prompt_tokens or 0 for record in records)
    output = sum(record.completion_tokens or 0 for record in records)
    return (
        Counter("prompt tokens", prompt, after.prompt_tokens - before.prompt_tokens),
        Counter("output tokens", output, after.generation_tokens - before.generation_tokens),
    )


def _traffic(
    before: NodeSnapshot | None, after: NodeSnapshot | None
) -> tuple[Traffic, Traffic] | str:
    """The counters at both ends, or why they cannot be set against each other."""
    if before is None or after is None:
        return f"the node gave no snapshot {'before' if before is None else 'after'} the run"
    if isinstance(before.traffic, NotExposed):
        return before.traffic.reason
    if isinstance(after.traffic, NotExposed):
        return after.traffic.reason
    up = (before.uptime_seconds, after.uptime_seconds)
    if isinstance(up[0], Known) and isinstance(up[1], Known) and up[1].value < up[0].value:
        return "the node was started anew during the run: its counters began again"
    return before.traffic.value, after.traffic.value


def _incomparable(before: Traffic, after: Traffic, records: Sequence[RequestRecord]) -> str | None:
    """Why the node may rightly have counted more than the client."""
    blind = sum(_is_blind(record) for record in records)
    if blind:
        return f"{blind} requests ended without usage: their tokens are known to the node alone"
    finished = sum(after.requests_by_outcome.values()) - sum(before.requests_by_outcome.values())
    if finished > len(records):
        others = finished - len(records)
        return f"others used the node during the run: it ended {others} requests more than the client sent"
    return None


def _is_blind(record: RequestRecord) -> bool:
    """The node may have counted tokens for it that it told nobody."""
    if record.completion_tokens is not None:
        return False
    why = record.error_class
    if why is not None and why is not ErrorClass.HTTP_408 and why.startswith(_UNTOUCHED):
        return False
    return record.cancelled or record.failed or record.ttft is not None


def token_check(records: Sequence[RequestRecord]) -> TokenCheck:
    pairs = [
        (record.counted_tokens, record.completion_tokens)
        for record in records
        if record.counted_tokens is not None and record.completion_tokens is not None
    ]
    offs = [abs(text - usage) for text, usage in pairs]
    differ = sum(off > END_TOKENS for off in offs)
    told = sum(usage for _, usage in pairs)
    return TokenCheck(
        compared=len(offs),
        differ=differ,
        share=differ / len(offs) if offs else None,
        worst=max(offs, default=0),
        bias=sum(text for text, _ in pairs) / told - 1 if told else None,
    )

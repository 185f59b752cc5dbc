"""What the oversize scenario throws at a node, and which answers are right for each.

An injection is judged by what came back for it; that the node is unharmed, by what it answers afterwards. The codes and
numbers of a refusal are kvops' own contract: of another engine any refusal that blames the request is right.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec

from kvops.load.exchange import Exchange
from kvops.load.records import ErrorClass
from kvops.telemetry.snapshot import NodeSnapshot

FIRST_ID, LAST_ID = 100, 300
"""Token ids that every vocabulary has; a prompt of ids is as long as it says, whatever the tokenizer."""
NESTING = 20_000
COMPLETIONS = "/v1/completions"
REFUSALS = (400, 413, 422)
"""With these a node says that the request is at fault; 422 is that of engines that leave it to their web framework."""

Judge = Callable[[Exchange], str | None]
"""What is wrong with an answer; None: nothing."""


class Case(msgspec.Struct, frozen=True):
    """One injection."""

    name: str
    body: Callable[[], bytes]
    judge: Judge
    expects: str
    """For readers."""
    prompt_tokens: int | None = None
    """Of a prompt that the node must accept and compute."""
    path: str = COMPLETIONS
    content_type: str = "application/json"


WITHIN_LIMIT = ("limit-1", "limit")
"""Cases that compute a prompt of the whole limit."""


def has_contract(before: NodeSnapshot | None) -> bool:
    """Whether the node is known for one of kvops, and so held to the words of kvops' refusals."""
    return before is not None and before.engine == "kvops"


def length_cases(model: str, limit: int, *, seed: int, contract: bool = True) -> list[Case]:
    """`limit` is the longest prompt + output of the node, tokens; each prompt here asks for one token.

    `contract`: the node is one of kvops, whose refusals hold numbers.
    """

    def ids(name: str, total: int) -> Callable[[], bytes]:
        return lambda: _completion(model, _token_ids(f"{seed} {name}", total - 1))

    counted, over = "200, every token counted", "400, or a marked truncation"
    too_long = _refuses_length(limit if contract else None)
    return [
        Case("limit-1", ids("limit-1", limit - 1), _accepts(limit - 2), counted, limit - 2),
        Case("limit", ids("limit", limit), _accepts(limit - 1), counted, limit - 1),
        Case("limit+1", ids("limit+1", limit + 1), too_long, over),
        Case("2x limit", ids("2x limit", 2 * limit), too_long, over),
        Case(
            "answer over limit",
            lambda: _completion(model, _token_ids(f"{seed} answer", 8), max_tokens=limit),
            too_long,
            over,
        ),
    ]


def size_cases(model: str, body_bytes: int) -> list[Case]:
    return [
        Case(
            "huge body",
            lambda: _completion(model, "x " * (body_bytes // 2)),
            refuses(*REFUSALS),
            "413 too_large",
        ),
        Case(
            "deep nesting",
            lambda: b'{"model": ' + b"[" * NESTING,
            refuses(*REFUSALS),
            "400 too_large",
        ),
    ]


def expectations() -> dict[str, str]:
    """What each case expects, for readers, in the order of the run."""
    return {
        case.name: case.expects for case in [*length_cases("", 16, seed=0), *size_cases("", 16)]
    }


def _token_ids(seed: str, count: int) -> list[int]:
    return random.Random(seed).choices(range(FIRST_ID, LAST_ID), k=count)


def _completion(model: str, prompt: Any, **fields: Any) -> bytes:
    body = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}}  # fmt: skip
    return msgspec.json.encode(body | fields)


def _accepts(prompt_tokens: int) -> Judge:
    def judge(got: Exchange) -> str | None:
        if got.error_class is not None:
            return f"a prompt within the limit was not answered: {got.error_class}: {got.message}"
        if got.usage.truncated or "x-kvops-truncated" in got.headers:
            return "a prompt within the limit was cut"
        if got.usage.prompt not in (None, prompt_tokens):
            return f"the node counts {got.usage.prompt} prompt tokens of {prompt_tokens}"
        return None

    return judge


def _refuses_length(limit: int | None) -> Judge:
    """`limit` is what the refusal has to say; None: it need not say any."""

    def judge(got: Exchange) -> str | None:
        if got.status == 200 and got.error_class is None:
            marked = got.usage.truncated or "x-kvops-truncated" in got.headers
            return (
                None if marked else "an over-length prompt was taken without a mark of truncation"
            )
        if limit is None:
            return refuses(*REFUSALS)(got)
        return _wrong_numbers(got, limit)

    return judge


def _wrong_numbers(got: Exchange, limit: int) -> str | None:
    if got.error_class is not ErrorClass.HTTP_400_CONTEXT_LENGTH:
        return unexpected(got, "400 context_length_exceeded")
    missing = {"prompt_tokens", "limit"} - got.error.keys()
    if missing:
        return f"the refusal does not say {' and '.join(sorted(missing))}"
    if got.error["limit"] != limit:
        return f"the refusal says limit {got.error['limit']}, the model list {limit}"
    return None


def refuses(*statuses: int) -> Judge:
    def judge(got: Exchange) -> str | None:
        return None if got.status in statuses else unexpected(got, " or ".join(map(str, statuses)))

    return judge


def unexpected(got: Exchange, wanted: str) -> str:
    what = f"HTTP {got.status}" if got.status is not None else str(got.error_class)
    return f"wanted {wanted}, got {what}: {got.message or 'no message'}"

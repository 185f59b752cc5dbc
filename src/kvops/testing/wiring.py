"""From the names of defects to what makes them: faults between client and node, settings, and what the node is told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvops.testing import answer_faults as answers
from kvops.testing import reading_faults as readings
from kvops.testing import request_faults as requests
from kvops.testing.between import Call, Fault, Reply

Crash = Callable[[], Awaitable[None]]
"""The engine dies, and the next one is ready."""
Log = Callable[..., None]

LONG_PROMPT = 4000
"""Characters, for a proxy that knows no tokens."""
CLIFF_SECONDS = 3.0
_UNBOUNDED, _FOR_EVER = 10_000, 600.0


@dataclass(frozen=True)
class Inside:
    """What faults of a node's own need of it."""

    key: str
    token: str
    crash: Crash
    log: Log


OUTSIDE: Mapping[str, Callable[[], Fault]] = {
    "not_ready": lambda: requests.Says("/readyz", 503, {"status": "loading", "reason": "busy"}),
    "stalled": lambda: requests.Says("/livez", 503, {"status": "stalled", "reason": "no step"}),
    "healthy_while_hung": requests.Hangs,
    "empty": lambda: answers.changed_text(lambda text: ""),
    "odd_finish": lambda: answers.ChangedAnswers(answers.odd_finish),
    "wrong_usage": lambda: answers.changed_usage(answers.wrong_total),
    "miscounted_usage": lambda: answers.changed_usage(answers.miscounted),
    "no_done": lambda: answers.Dropped(answers.is_done),
    "no_usage_chunk": lambda: answers.Dropped(answers.is_usage),
    "stream_differs": lambda: answers.changed_text(lambda text: text and " other", answers.streams),
    "endless_stream": answers.Endless,
    "no_reuse": lambda: answers.changed_usage(answers.nothing_cached),
    "drops_turns": requests.ForgetsTurns,
    "no_limit": lambda: requests.Models(None),
    "overstated_limit": lambda: requests.Models(1.5),
    "silent_truncation": lambda: requests.CutsPrompts(claims_all=False),
    "accepts_over_length": lambda: requests.CutsPrompts(claims_all=True),
    "no_numbers": requests.NoNumbers,
    "server_error_for_bad_json": requests.ServerErrorForBadJson,
    "any_model": requests.AnyModel,
    "any_field": requests.AnyField,
    "no_metrics": lambda: requests.Says("/metrics", 404, {"error": {"code": "not_found"}}),
    "missing_family": lambda: readings.ChangedMetrics(readings.without_family("kvops_kv_blocks")),
    "wrong_type": lambda: readings.ChangedMetrics(readings.gauge_of("kvops_preemptions_total")),
    "duplicate_series": lambda: readings.ChangedMetrics(readings.stated_twice),
    "no_rejections": lambda: readings.ChangedMetrics(readings.no_rejections),
    "frozen_counters": readings.Frozen,
    "no_retry_after": requests.NoRetryAfter,
    "cross_tenant_hits": requests.OneCacheForAll,
    "wrong_beyond_length": lambda: answers.changed_text(
        answers.wrong_digits, lambda call: len(call.body) > LONG_PROMPT
    ),
    "ttft_cliff": lambda: requests.Cliff(LONG_PROMPT, CLIFF_SECONDS),
    "role_first_token": answers.EarlyRole,
}
"""What can be done before any node."""

BY_THE_ENGINE = frozenset({"cross_tenant_hits", "wrong_beyond_length", "ttft_cliff"})
"""Of a node of our own these are the engine's, which knows tokens and tenants."""

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "unbounded_queue": {"runtime.max_queue": _UNBOUNDED},
    "ignores_deadline": {"runtime.queue_timeout": _FOR_EVER, "runtime.request_timeout": _FOR_EVER},
}
"""What holds, while the node says that its own settings do."""


def outside_faults(names: frozenset[str]) -> list[Fault]:
    """For a proxy."""
    return [make() for name, make in OUTSIDE.items() if name in names]


def data_faults(names: frozenset[str], inside: Inside) -> list[Fault]:
    """Of a node's own data plane."""
    own: dict[str, Callable[[], Fault]] = {
        "open_invocations": lambda: _door(inside, "/invocations", "/v1/completions"),
        "open_tokenize": lambda: _door(inside, "/tokenize", "/v1/tokenize"),
        "open_server_info": lambda: requests.Says("/get_server_info", 200, {"model": "words"}),
        "dies_of_over_length": lambda: Mortal(inside.crash, "context_length_exceeded", every=1),
        "dies_of_malformed": lambda: Mortal(inside.crash, "invalid_request", every=1),
        "dies_under_injection": lambda: Mortal(inside.crash, "invalid_request", every=4),
        "prompts_in_logs": lambda: Told(inside.log, _prompt),
        "allocation_errors": lambda: Told(inside.log, _no_blocks),
        "retry_storm": lambda: Told(inside.log, _tries_again),
    }
    chosen = names - BY_THE_ENGINE
    return outside_faults(chosen) + [make() for name, make in own.items() if name in chosen]


def control_faults(
    names: frozenset[str], inside: Inside, claimed: Mapping[str, Mapping[str, Any]]
) -> list[Fault]:
    """Of a node's own control plane. `claimed`: settings that it says it has, by section."""
    own: dict[str, Callable[[], Fault]] = {
        "open_control": lambda: readings.OpenDoor(inside.token),
        "alert_not_delivered": readings.NobodyTold,
        "frozen_counters": readings.Frozen,
        "ledger_off": lambda: readings.ChangedSnapshot(readings.ledger_off),
        "lost_block": lambda: readings.ChangedSnapshot(readings.lost_block),
        "holds_blocks": lambda: readings.ChangedSnapshot(readings.held_blocks),
        "broken_invariant": lambda: readings.ChangedSnapshot(readings.broken_invariant),
    }
    claims: Sequence[Fault] = [
        readings.Claims(section, dict(values)) for section, values in claimed.items()
    ]
    return [make() for name, make in own.items() if name in names] + list(claims)


def _door(inside: Inside, path: str, to: str) -> Fault:
    return requests.BackDoor(path, to, inside.key)


class Mortal(Fault):
    """The engine dies of every so many refused requests of a kind, before they are refused."""

    def __init__(self, crash: Crash, code: str, *, every: int) -> None:
        self._crash, self._code, self._every = crash, code, every
        self._seen = 0

    async def leave(self, call: Call, reply: Reply) -> bool:
        if call.infers and reply.code == self._code:
            self._seen += 1
            if self._seen % self._every == 0:
                await self._crash()
        return False


class Told(Fault):
    """The log is told of each request, wrongly."""

    def __init__(self, log: Log, what: Callable[[Log, Call], None]) -> None:
        self._log, self._what = log, what

    async def enter(self, call: Call) -> Reply | None:
        if call.infers:
            self._what(self._log, call)
        return None


def _prompt(log: Log, call: Call) -> None:
    log("info", "received", body=call.body.decode(errors="replace"))


def _no_blocks(log: Log, call: Call) -> None:
    log("error", "allocation_failed", error="OutOfMemoryError", message="KV cache: no free blocks")


def _tries_again(log: Log, call: Call) -> None:
    for attempt in range(20):
        log("warning", "retry", attempt=attempt, message="retrying the step")

"""Who is to be told what: compares the states with what each channel took, and writes messages for the difference.

Since it compares instead of remembering events, a restart, a silence that ends and a receiver that was away all end in
the same place: every channel knows what is true, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from kvops.alerts.book import Attempt, Book, Message, Outcome, Status, Told
from kvops.alerts.evaluator import RuleState
from kvops.alerts.rules import Rule

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 300.0


@dataclass(frozen=True)
class Terms:
    """How and about which node is told."""

    node: str
    repeat: float
    """Seconds."""
    give_up_after: float


def plan(
    book: Book, rules: Sequence[Rule], channels: Iterable[str], terms: Terms, now: float
) -> bool:
    """Bring the outbox up to the states in the book; whether anything changed."""
    before = book.outbox, book.told, book.silences, book.acks
    wanted = list(channels)
    book.outbox = {name: dict(book.outbox.get(name, {})) for name in wanted}
    book.told = {name: dict(book.told.get(name, {})) for name in wanted}
    book.silences = {name: each for name, each in book.silences.items() if now < each.until}
    book.acks = {name: each for name, each in book.acks.items() if book.acknowledged(name)}
    by_name = {rule.name: rule for rule in rules}
    for channel in wanted:
        _plan_channel(book, channel, by_name, terms, now)
    return before != (book.outbox, book.told, book.silences, book.acks)


def _plan_channel(
    book: Book, channel: str, rules: dict[str, Rule], terms: Terms, now: float
) -> None:
    box, told = book.outbox[channel], book.told[channel]
    for gone in [name for name in (*box, *told) if name not in rules]:
        box.pop(gone, None)
        told.pop(gone, None)
    for name, rule in rules.items():
        if book.silenced(name, now):
            box.pop(name, None)
            continue
        state = book.states.get(name, RuleState())
        status = _due(state, told.get(name), box.get(name), _repeat(book, name, terms), now)
        if status is not None:
            box[name] = _message(rule, state, status, told.get(name), terms.node, now)


def _repeat(book: Book, name: str, terms: Terms) -> float:
    return float("inf") if book.acknowledged(name) else terms.repeat


def _due(
    state: RuleState, told: Told | None, waiting: Message | None, repeat: float, now: float
) -> Status | None:
    """What to write now, if anything."""
    if state.phase == "firing":
        if waiting and (waiting.status, waiting.started_at) == ("firing", state.started_at):
            return None
        known = told is not None and (told.status, told.started_at) == ("firing", state.started_at)
        overdue = told is not None and not 0 <= now - told.at < repeat
        return None if known and not overdue and waiting is None else "firing"
    if waiting is not None:
        # A receiver that was away learns with one message that it was, and that it is over.
        return None if waiting.status == "resolved" else "resolved"
    return "resolved" if told is not None and told.status == "firing" else None


def _message(
    rule: Rule, state: RuleState, status: Status, told: Told | None, node: str, now: float
) -> Message:
    over = status == "resolved"
    started = told.started_at if over and told and told.status == "firing" else state.started_at
    return Message(
        rule=rule.name,
        status=status,
        labels={**rule.labels, **state.labels, "alertname": rule.name, "severity": rule.severity, "node": node},
        annotations={"summary": rule.summary, "remedy": rule.remedy, "value": shown_value(rule, state)},
        started_at=started,
        ended_at=(state.since if state.phase == "resolved" else now) if over else None,
        created_at=now,
        next_at=now,
    )  # fmt: skip


def shown_value(rule: Rule, state: RuleState) -> str:
    """In the reading's unit; why there is none, where there is none."""
    if state.no_data:
        return f"no data: {state.no_data}"
    return rule.nothing if state.value is None else rule.shown(state.value)


def settle(
    book: Book, channel: str, message: Message, error: str, seconds: float, terms: Terms, now: float
) -> Attempt:
    """Write down how an attempt went; `error` is empty where the receiver took it."""
    expired = now - message.created_at >= terms.give_up_after
    if not error or expired:
        # One that was given up is tried again when it is time to repeat it, not before.
        told = Told(message.status, message.started_at, now, taken=not error)
        book.told.setdefault(channel, {})[message.rule] = told
    box = book.outbox.get(channel, {})
    if box.get(message.rule) is message:
        del box[message.rule]
        if error and not expired:
            box[message.rule] = _later(message, now)
    outcome: Outcome = "delivered" if not error else "failed" if expired else "retried"
    attempt = Attempt(message.rule, message.status, outcome, now, seconds, error)
    book.attempts[channel] = attempt
    return attempt


def _later(message: Message, now: float) -> Message:
    pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0**message.attempts)
    return msgspec.structs.replace(message, attempts=message.attempts + 1, next_at=now + pause)


def next_due(book: Book, channel: str, now: float) -> tuple[Message, float] | None:
    """The message that is to be tried first, and in how many seconds."""
    waiting = book.outbox.get(channel, {}).values()
    first = min(waiting, key=lambda message: message.next_at, default=None)
    if first is None:
        return None
    # Further away than the longest pause: the clock was set back.
    pause = first.next_at - now
    return first, pause if 0 < pause <= LONGEST_PAUSE else 0.0

"""What an operator is told of the alerts: every rule and how it stands, every channel and its last attempt. No URL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from kvops.alerts.book import Book
from kvops.alerts.delivery.channels import Channel
from kvops.alerts.dispatch import shown_value
from kvops.alerts.evaluator import RuleState
from kvops.alerts.rules import Rule
from kvops.telemetry.snapshot import ActiveAlert

Heard = Literal["taken", "refused", "given up", "waits"]


def active_alerts(book: Book, rules: Sequence[Rule], now: float) -> tuple[ActiveAlert, ...]:
    """Those that are pending or firing."""
    return tuple(
        ActiveAlert(
            rule.name,
            rule.severity,
            state.phase,
            state.since,
            rule.summary,
            rule.remedy,
            book.silenced(rule.name, now),
            book.acknowledged(rule.name),
        )
        for rule in rules
        if (state := book.states.get(rule.name, RuleState())).phase in ("pending", "firing")
    )


def rule_rows(
    book: Book, rules: Sequence[Rule], channels: Sequence[Channel], now: float
) -> list[dict[str, Any]]:
    """Times are Unix seconds; what does not apply is None."""
    names = [channel.name for channel in channels]
    return [_rule_row(book, rule, names, now) for rule in rules]


def _rule_row(book: Book, rule: Rule, channels: Sequence[str], now: float) -> dict[str, Any]:
    state = book.states.get(rule.name, RuleState())
    firing = state.phase == "firing"
    silence = book.silences.get(rule.name) if book.silenced(rule.name, now) else None
    ack = book.acks.get(rule.name) if book.acknowledged(rule.name) else None
    return {
        "rule": rule.name,
        "severity": rule.severity,
        "state": state.phase,
        "since": state.since or None,
        "value": state.value,
        "shown": shown_value(rule, state),
        "no_data": state.no_data or None,
        "summary": rule.summary,
        "remedy": rule.remedy,
        "silence": None if silence is None else msgspec.to_builtins(silence),
        "acknowledged": None if ack is None else msgspec.to_builtins(ack),
        "told": {name: _heard(book, name, rule.name, state) for name in channels} if firing else {},
    }


def _heard(book: Book, channel: str, rule: str, state: RuleState) -> Heard:
    """What became of the alert that fires now at this channel."""
    told = book.told.get(channel, {}).get(rule)
    if told is not None and (told.status, told.started_at) == ("firing", state.started_at):
        return "taken" if told.taken else "given up"
    waiting = book.outbox.get(channel, {}).get(rule)
    return "refused" if waiting is not None and waiting.attempts else "waits"


def channel_rows(
    book: Book, channels: Sequence[Channel], counts: Mapping[str, Mapping[str, int]]
) -> list[dict[str, Any]]:
    """`counts`: attempts by channel and outcome."""
    return [
        {
            "channel": channel.name,
            "kind": channel.kind,
            "undelivered": sorted(book.outbox.get(channel.name, {})),
            "attempts": dict(counts.get(channel.name, {})),
            "last": msgspec.to_builtins(last)
            if (last := book.attempts.get(channel.name))
            else None,
        }
        for channel in channels
    ]

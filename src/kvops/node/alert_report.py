"""What an operator is told of the alerts: every rule and how it stands, every channel and its last attempt. No URL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from kvops.alerts.book import Book
from kvops.alerts.delivery.channels import Channel
from kvops.alerts.dispatch import shown_value
from kvops.alerts.evaluator import RuleState
from kvops.alerts.rules import Rule
from kvops.telemetry.snapshot import ActiveAlert


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


def rule_rows(book: Book, rules: Sequence[Rule], now: float) -> list[dict[str, Any]]:
    """Times are Unix seconds; what does not apply is None."""
    return [_rule_row(book, rule, now) for rule in rules]


def _rule_row(book: Book, rule: Rule, now: float) -> dict[str, Any]:
    state = book.states.get(rule.name, RuleState())
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
    }


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

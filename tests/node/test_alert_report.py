"""What an operator is told of the alerts: who took what, and nothing that only was meant to be sent."""

from __future__ import annotations

import pytest

from kvops.alerts.book import Ack, Book, Silence
from kvops.alerts.delivery.channels import Channel
from kvops.alerts.dispatch import Terms, next_due, plan, settle
from kvops.alerts.evaluator import RuleState
from kvops.alerts.rulebook import rulebook
from kvops.cli import alerts as command
from kvops.node.alert_report import channel_rows, rule_rows

RULES = tuple(rule for rule in rulebook() if rule.name == "KvUsageHigh")
T0 = 1_000_000.0
TERMS = Terms("node", repeat=3600.0, give_up_after=600.0)
ONCALL, CHAT = (
    Channel(name, "webhook", f"http://127.0.0.1:1/{name}", 1.0) for name in ("oncall", "chat")
)


def fired(*channels: Channel) -> Book:
    book = Book(states={"KvUsageHigh": RuleState("firing", since=T0, started_at=T0, value=0.97)})
    plan(book, RULES, [channel.name for channel in channels], TERMS, T0)
    return book


def deliver(book: Book, channel: Channel, error: str, now: float = T0) -> None:
    due = next_due(book, channel.name, now)
    assert due is not None
    settle(book, channel.name, due[0], error, 0.1, TERMS, now)


def told(book: Book, *channels: Channel, now: float = T0) -> str:
    (row,) = rule_rows(book, RULES, channels, now)
    return command._told(row)


def test_nobody_is_told_before_a_receiver_took_it() -> None:
    assert told(fired()) == "no channel"
    book = fired(ONCALL)
    assert told(book, ONCALL) == "not yet: oncall waits"
    deliver(book, ONCALL, "HTTP 500")
    assert told(book, ONCALL) == "not yet: oncall refused"
    deliver(book, ONCALL, "")
    assert told(book, ONCALL) == "yes"


def test_each_channel_speaks_for_itself() -> None:
    book = fired(ONCALL, CHAT)
    deliver(book, CHAT, "")
    deliver(book, ONCALL, "HTTP 500")
    assert told(book, ONCALL, CHAT) == "chat yes, oncall refused"


def test_what_was_given_up_is_no_yes() -> None:
    book = fired(ONCALL)
    deliver(book, ONCALL, "HTTP 500", T0 + 601)
    assert told(book, ONCALL) == "not yet: oncall given up"


def test_that_somebody_knows_tells_nobody() -> None:
    book = fired(ONCALL)
    deliver(book, ONCALL, "HTTP 500")
    book.acks["KvUsageHigh"] = Ack(T0, "ann", T0)
    assert told(book, ONCALL) == "not yet: oncall refused; ann knows"
    deliver(book, ONCALL, "")
    assert told(book, ONCALL) == "yes; ann knows"


def test_an_alert_of_before_is_not_this_one() -> None:
    book = fired(ONCALL)
    deliver(book, ONCALL, "")
    book.states["KvUsageHigh"] = RuleState("firing", since=T0 + 50, started_at=T0 + 50, value=0.97)
    assert told(book, ONCALL) == "not yet: oncall waits"


def test_a_silence_is_shown_with_its_end_and_reason_whatever_else_is_hidden(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    book = Book(silences={"KvUsageHigh": Silence(T0 + 60, "the pool is being changed", "ann", T0)})
    report = {
        "enabled": True,
        "rules": rule_rows(book, RULES, (ONCALL,), T0),
        "channels": channel_rows(book, (ONCALL,), {}),
    }
    command._print_report("node", report, every=False)
    shown = capsys.readouterr().out
    assert "1 of 1 rules are quiet" in shown
    end = "KvUsageHigh is silenced until 1970-01-12 13:47:40 UTC by ann: the pool is being changed"
    assert end in shown

"""Who is told what: once, again when it is time, and of the end, whatever restarts, silences and outages there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvops.alerts.book import Ack, Book, Message, Silence, encode_book, read_book, write_book
from kvops.alerts.dispatch import FIRST_PAUSE, LONGEST_PAUSE, Terms, next_due, plan, settle
from kvops.alerts.evaluator import RuleState
from kvops.alerts.rulebook import rulebook

RULES = tuple(each for each in rulebook() if each.name in ("KvUsageHigh", "QueueLong"))
TERMS = Terms("node", repeat=3600, give_up_after=7200)
T0 = 1_800_000_000.0
KV = "KvUsageHigh"


def firing(since: float) -> RuleState:
    return RuleState("firing", since, since, 0.97)


def resolved(began: float, ended: float) -> RuleState:
    return RuleState("resolved", ended, began, 0.2)


class Post:
    """A book, one channel, and what its receiver took."""

    def __init__(self) -> None:
        self.book = Book()
        self.took: list[Message] = []

    def look(self, now: float, state: RuleState | None = None, **fields: Any) -> list[str]:
        """What is new in the outbox, as it is delivered."""
        if state is not None:
            self.book.states[KV] = state
        plan(self.book, RULES, fields.get("channels", ["oncall"]), TERMS, now)
        return [message.status for message in self.book.outbox.get("oncall", {}).values()]

    def deliver(self, now: float, error: str = "") -> str:
        due = next_due(self.book, "oncall", now)
        assert due is not None
        attempt = settle(self.book, "oncall", due[0], error, 0.1, TERMS, now)
        if not error:
            self.took.append(due[0])
        return attempt.outcome

    def restart(self, file: Path) -> None:
        write_book(file, encode_book(self.book))
        self.book = read_book(file)


def test_told_once_and_of_the_end() -> None:
    post = Post()
    assert post.look(T0, firing(T0)) == ["firing"]
    assert post.look(T0 + 1) == ["firing"]
    assert post.deliver(T0 + 2) == "delivered"
    assert post.look(T0 + 3) == []
    assert post.look(T0 + 9, resolved(T0, T0 + 9)) == ["resolved"]
    post.deliver(T0 + 10)
    assert post.look(T0 + 11) == []
    assert [(m.status, m.started_at, m.ended_at) for m in post.took] == [
        ("firing", T0, None), ("resolved", T0, T0 + 9),
    ]  # fmt: skip
    assert post.took[0].labels == {"alertname": KV, "severity": "warning", "node": "node"}
    assert post.took[0].annotations["value"] == "97 %"


def test_a_restart_neither_tells_again_nor_forgets(tmp_path: Path) -> None:
    post, file = Post(), tmp_path / "alerts.json"
    post.look(T0, firing(T0))
    post.restart(file)
    assert post.look(T0 + 1) == ["firing"]
    post.deliver(T0 + 2)
    post.book.silences["QueueLong"] = Silence(T0 + 500, "known", "me", T0)
    post.book.acks[KV] = Ack(T0, "me", T0 + 2)
    post.restart(file)
    assert post.look(T0 + 3) == []
    assert post.look(T0 + 100_000) == []
    assert post.book.acknowledged(KV)
    assert file.stat().st_mode & 0o077 == 0


def test_it_is_repeated_until_somebody_knows() -> None:
    post = Post()
    post.look(T0, firing(T0))
    post.deliver(T0)
    assert post.look(T0 + 3599) == []
    assert post.look(T0 + 3600) == ["firing"]
    post.deliver(T0 + 3600)
    post.book.acks[KV] = Ack(T0, "me", T0 + 3601)
    assert post.look(T0 + 90_000) == []
    assert post.look(T0 + 90_001, resolved(T0, T0 + 90_001)) == ["resolved"]
    post.deliver(T0 + 90_002)
    assert post.look(T0 + 90_003, firing(T0 + 90_003)) == ["firing"]


def test_a_silence_tells_nobody_and_what_is_left_then_is_told_then() -> None:
    post = Post()
    post.book.silences[KV] = Silence(T0 + 100, "known", "me", T0)
    assert post.look(T0, firing(T0)) == []
    assert post.look(T0 + 99) == []
    assert post.look(T0 + 100) == ["firing"]
    post.deliver(T0 + 100)
    post.book.silences[KV] = Silence(T0 + 300, "known", "me", T0 + 100)
    assert post.look(T0 + 200, resolved(T0, T0 + 200)) == []
    assert post.look(T0 + 300) == ["resolved"]


def test_what_a_silence_covered_from_start_to_end_is_never_told() -> None:
    post = Post()
    post.book.silences[KV] = Silence(T0 + 100, "known", "me", T0)
    post.look(T0, firing(T0))
    post.look(T0 + 50, resolved(T0, T0 + 50))
    assert post.look(T0 + 101) == []


def test_a_receiver_that_was_away_learns_what_was_with_one_message() -> None:
    post = Post()
    post.look(T0, firing(T0))
    assert post.deliver(T0, "no answer") == "retried"
    assert post.look(T0 + 5, resolved(T0, T0 + 5)) == ["resolved"]
    post.deliver(T0 + 6)
    assert [(m.started_at, m.ended_at) for m in post.took] == [(T0, T0 + 5)]
    assert post.look(T0 + 7) == []


def test_pauses_grow_to_a_bound_and_then_it_is_given_up() -> None:
    post, now, pauses = Post(), T0, []
    post.look(T0, firing(T0))
    while (due := next_due(post.book, "oncall", now)) is not None:
        now += due[1]
        if post.deliver(now, "down") == "failed":
            break
        pauses.append(next_due(post.book, "oncall", now)[1])  # type: ignore[index]
    assert pauses[:3] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert max(pauses) == LONGEST_PAUSE
    assert now >= T0 + TERMS.give_up_after
    assert post.look(now + 1) == []
    assert post.look(now + 3600) == ["firing"]


def test_a_clock_that_is_set_back_stops_no_message() -> None:
    post = Post()
    post.look(T0, firing(T0))
    post.deliver(T0, "down")
    assert next_due(post.book, "oncall", T0 - 86400) is not None
    assert next_due(post.book, "oncall", T0 - 86400)[1] == 0  # type: ignore[index]


def test_a_channel_that_is_gone_takes_its_messages_along() -> None:
    post = Post()
    post.look(T0, firing(T0))
    post.look(T0 + 1, channels=["other"])
    assert set(post.book.outbox) == {"other"}


@pytest.mark.parametrize(
    "damage", [b"", b"{", b'{"version": 2}', b'{"version": 1, "states": 3}', b"[]"]
)
def test_a_book_that_cannot_be_read_is_an_error(damage: bytes, tmp_path: Path) -> None:
    file = tmp_path / "alerts.json"
    file.write_bytes(damage)
    with pytest.raises((ValueError, msgspec.DecodeError)):
        read_book(file)


class Outbox(RuleBasedStateMachine):
    """Whatever happens, the outbox is bounded, and a receiver that is there ends up knowing what is true."""

    @initialize()
    def begin(self) -> None:
        self.post, self.now = Post(), T0

    @rule(seconds=st.floats(0, 5000))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def it_fires(self) -> None:
        if self.post.book.states.get(KV, RuleState()).phase != "firing":
            self.post.look(self.now, firing(self.now))

    @rule()
    def it_ends(self) -> None:
        state = self.post.book.states.get(KV, RuleState())
        if state.phase == "firing":
            self.post.look(self.now, resolved(state.started_at, self.now))

    @rule(seconds=st.floats(0, 4000))
    def somebody_silences(self, seconds: float) -> None:
        self.post.book.silences[KV] = Silence(self.now + seconds, "r", "me", self.now)

    @rule()
    def somebody_knows(self) -> None:
        state = self.post.book.states.get(KV, RuleState())
        if state.phase == "firing":
            self.post.book.acks[KV] = Ack(state.started_at, "me", self.now)

    @rule(error=st.sampled_from(["", "down"]))
    def an_attempt(self, error: str) -> None:
        if next_due(self.post.book, "oncall", self.now) is not None:
            self.post.deliver(self.now, error)

    @rule()
    def restart(self) -> None:
        self.post.book = msgspec.json.decode(encode_book(self.post.book), type=Book)

    @invariant()
    def at_most_one_message(self) -> None:
        assert len(self.post.book.outbox.get("oncall", {})) <= 1

    @invariant()
    def an_end_is_told_only_of_what_is_over(self) -> None:
        for message in self.post.took:
            assert (message.ended_at is not None) == (message.status == "resolved")

    @invariant()
    def a_receiver_that_is_there_knows_what_is_true(self) -> None:
        copy = Post()
        copy.book = msgspec.json.decode(encode_book(self.post.book), type=Book)
        copy.book.silences = {}
        copy.look(self.now)
        while next_due(copy.book, "oncall", self.now) is not None:
            copy.deliver(self.now)
        told = copy.book.told.get("oncall", {}).get(KV)
        is_firing = copy.book.states.get(KV, RuleState()).phase == "firing"
        assert (told is not None and told.status == "firing") == is_firing
        assert copy.look(self.now) == []


TestOutbox = Outbox.TestCase
TestOutbox.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)

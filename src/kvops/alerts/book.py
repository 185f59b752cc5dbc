"""What must outlive the daemon: states, silences, acknowledgements, who was told what, and what is still to be told.

One small file, replaced whole. It holds at most one message for each rule and channel, and no URL.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from kvops import paths
from kvops.alerts.evaluator import RuleState

Status = Literal["firing", "resolved"]
Outcome = Literal["delivered", "retried", "failed"]
OUTCOMES: tuple[Outcome, ...] = ("delivered", "retried", "failed")
VERSION = 1
MAX_BYTES = 8 * 2**20


class Silence(msgspec.Struct, frozen=True):
    """Nobody is told of the rule until then."""

    until: float
    reason: str
    by: str
    at: float


class Ack(msgspec.Struct, frozen=True):
    """Somebody knows: the alert that began at `started_at` is not repeated."""

    started_at: float
    by: str
    at: float


class Told(msgspec.Struct, frozen=True):
    """What a channel last took of a rule, or what was given up."""

    status: Status
    started_at: float
    at: float
    taken: bool = True
    """False where no attempt could deliver it."""


class Message(msgspec.Struct, frozen=True):
    """Of one rule to one channel. Times are Unix seconds."""

    rule: str
    status: Status
    labels: dict[str, str]
    annotations: dict[str, str]
    started_at: float
    ended_at: float | None
    created_at: float
    attempts: int = 0
    next_at: float = 0.0


class Attempt(msgspec.Struct, frozen=True):
    """How the last one of a channel went."""

    rule: str
    status: Status
    outcome: Outcome
    at: float
    seconds: float
    error: str = ""


class Book(msgspec.Struct, kw_only=True):
    version: int = VERSION
    at: float | None = None
    """Of the last evaluation."""
    states: dict[str, RuleState] = {}
    silences: dict[str, Silence] = {}
    acks: dict[str, Ack] = {}
    told: dict[str, dict[str, Told]] = {}
    """By channel, then by rule; so are the messages."""
    outbox: dict[str, dict[str, Message]] = {}
    attempts: dict[str, Attempt] = {}
    """By channel."""

    def silenced(self, rule: str, now: float) -> bool:
        silence = self.silences.get(rule)
        return silence is not None and now < silence.until

    def acknowledged(self, rule: str) -> bool:
        ack, state = self.acks.get(rule), self.states.get(rule)
        return ack is not None and state is not None and ack.started_at == state.started_at

    def oldest_undelivered(self, now: float) -> float:
        """Seconds; 0 when everything was delivered."""
        created = [message.created_at for box in self.outbox.values() for message in box.values()]
        return max(0.0, now - min(created)) if created else 0.0


def read_book(file: Path) -> Book:
    """A new one where there is none. Raises ValueError for a file that is no book, OSError."""
    try:
        with file.open("rb") as handle:
            data = handle.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return Book()
    if len(data) > MAX_BYTES:
        raise ValueError(f"larger than {MAX_BYTES} bytes")
    book = msgspec.json.decode(data, type=Book)
    if book.version != VERSION:
        raise ValueError(f"version {book.version}, not {VERSION}")
    return book


def write_book(file: Path, data: bytes) -> None:
    """Raises OSError."""
    paths.write_atomic(file, data)


def encode_book(book: Book) -> bytes:
    return msgspec.json.encode(book)

"""The node's own alerts: looks at the snapshot every few seconds, keeps the book, and has messages delivered.

Nothing here can stop the node: what fails is logged, and shows in the age of the last evaluation.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import structlog

from kvops.alerts.book import (
    Ack,
    Attempt,
    Book,
    Message,
    Silence,
    encode_book,
    read_book,
    write_book,
)
from kvops.alerts.delivery.channels import Channel, read_channels
from kvops.alerts.delivery.post_office import PostOffice
from kvops.alerts.dispatch import Terms, plan
from kvops.alerts.evaluator import Evaluator
from kvops.alerts.rulebook import rulebook
from kvops.alerts.rules import DRILL, Rule
from kvops.config.schema import Alerts, NodeConfig
from kvops.errors import DrillRefused, InvalidRequest
from kvops.node.alert_report import active_alerts, channel_rows, rule_rows
from kvops.node.drills import Drills
from kvops.node.state import NodeView
from kvops.telemetry.snapshot import AlertsState, Known, NodeSnapshot, NotExposed, Reading

_SHORTEST_GAP = 60.0
"""Between two looks, from which on the time between was not watched. At least three intervals."""

log = structlog.get_logger("kvops.alerts")


class Alerting:
    """`snapshot` gives the node's picture. Raises ConfigError for rules and channels that are not valid."""

    def __init__(
        self, config: NodeConfig, folder: Path, snapshot: Callable[[], NodeSnapshot]
    ) -> None:
        self._file = folder / "alerts.json"
        self._snapshot = snapshot
        self._book = _read(self._file)
        self._drills = Drills()
        self._post = PostOffice(self._book, lambda: self._terms, self._attempted)
        self._saved = b""
        self._saving = asyncio.Lock()
        self._unsaved = ""
        self._wake = asyncio.Event()
        self.take(config)

    # New settings, at the start and while the node runs (kvops.node.reload.Part).

    def check(self, config: NodeConfig) -> None:
        checked(config.alerts)

    def take(self, config: NodeConfig) -> None:
        settings = config.alerts
        self._rules, self._channels = checked(settings)
        self._settings = settings
        self._terms = Terms(config.name, settings.repeat, settings.give_up_after)
        gap = max(_SHORTEST_GAP, 3 * settings.interval)
        book = self._book
        self._evaluator = Evaluator(self._rules, book.states, book.at, longest_gap=gap)
        self._wake.set()

    # The task.

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                if self._settings.enabled:
                    await self._look()
                await self._pause()
        finally:
            await self._post.close()
            await self._save()

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self._settings.interval):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()

    async def _look(self) -> None:
        try:
            now = time.time()
            self._book.states = self._evaluator.step(self._snapshot(), now)
            self._book.at = now
            self._drills.evaluated(self._book)  # before a channel can have told of it
            self._post.serve((*self._channels, *self._drills.channels))
            names = [channel.name for channel in self._post.channels]
            plan(self._book, self._rules, names, self._terms, now)
            await self._save()
        except Exception as defect:
            log.error("evaluation_failed", error=type(defect).__name__)
        self._post.look()

    async def _attempted(self, channel: Channel, message: Message, attempt: Attempt) -> None:
        self._drills.attempted(channel, message, attempt)
        if attempt.outcome != "delivered":
            log.warning(
                "alert_not_delivered",
                channel=channel.name,
                rule=message.rule,
                outcome=attempt.outcome,
                reason=attempt.error,
            )
        await self._save()

    # What the rest of the node asks.

    def reading(self) -> Reading[AlertsState]:
        if not self._settings.enabled:
            return NotExposed("alerts.enabled is false")
        if self._book.at is None:
            return NotExposed("no alerts are evaluated yet")
        now = time.time()
        state = AlertsState(
            evaluated_at=self._book.at,
            rules=tuple(rule.name for rule in self._rules),
            active=active_alerts(self._book, self._rules, now),
            deliveries=self._post.counts,
            oldest_undelivered_seconds=self._book.oldest_undelivered(now),
            drill=self._drills.nonce,
        )
        return Known(state, self._book.at)

    def report(self) -> dict[str, Any]:
        """For an operator, as JSON."""
        now, book = time.time(), self._book
        return {
            "enabled": self._settings.enabled,
            "evaluated_at": book.at,
            "interval_seconds": self._settings.interval,
            "oldest_undelivered_seconds": book.oldest_undelivered(now),
            "not_saved": self._unsaved or None,
            "rules": rule_rows(book, self._rules, self._channels, now),
            "channels": channel_rows(book, self._channels, self._post.counts),
        }

    async def silence(self, rule: str, seconds: float, reason: str, by: str) -> float | None:
        """Until when; 0 seconds ends it. Raises InvalidRequest."""
        self._check_rule(rule)
        now = time.time()
        self._book.silences.pop(rule, None)
        if seconds:
            self._book.silences[rule] = Silence(now + seconds, reason, by, now)
        log.info("silenced", rule=rule, seconds=seconds, by=by)
        await self._save()
        self._wake.set()
        return now + seconds if seconds else None

    async def acknowledge(self, rule: str, by: str) -> None:
        """Raises InvalidRequest for a rule that does not fire."""
        self._check_rule(rule)
        state = self._evaluator.states[rule]
        if state.phase != "firing":
            raise InvalidRequest(
                f"{rule} is {state.phase}: there is nothing to acknowledge.", param="rule"
            )
        self._book.acks[rule] = Ack(state.started_at, by, time.time())
        log.info("acknowledged", rule=rule, by=by)
        await self._save()

    async def drill(self, patience: float, sink: str | None) -> dict[str, Any]:
        """Raise the drill's alert and see who takes it within `patience` seconds.

        Raises DrillRefused, InvalidRequest.
        """
        if not self._settings.enabled:
            raise DrillRefused("alerts.enabled is false: no rule is looked at.")
        if self._book.silenced(DRILL, time.time()):
            raise DrillRefused(
                f"{DRILL} is silenced.", hint=f"kvops alerts silence {DRILL} --for 0s"
            )
        return await self._drills.run(self._channels, patience, sink)

    def _check_rule(self, name: str) -> None:
        if name not in self._evaluator.states:
            raise InvalidRequest(
                f"there is no rule {name[:80]!r}.",
                param="rule",
                hint="kvops alerts list names them.",
            )

    async def _save(self) -> None:
        """What was decided, on disk. A disk that is full delays no alert: it is tried again at each look."""
        async with self._saving:
            decided = _decided(self._book)
            if decided == self._saved:
                return
            try:
                await asyncio.to_thread(write_book, self._file, encode_book(self._book))
            except OSError as error:
                if not self._unsaved:
                    log.warning("alerts_not_saved", error=error.strerror)
                self._unsaved = error.strerror or type(error).__name__
            else:
                self._saved, self._unsaved = decided, ""


def alerting_of(view: NodeView, folder: Path) -> Alerting:
    """Of the node that `view` shows; the view shows its alerts, too. Raises ConfigError."""
    alerting = Alerting(view.settings.config, folder, view.snapshot)
    view.alerts = alerting.reading
    return alerting


def checked(settings: Alerts) -> tuple[tuple[Rule, ...], tuple[Channel, ...]]:
    """Raises ConfigError."""
    rules = rulebook(
        file=settings.rules_file,
        inline=settings.rules,
        disabled=settings.disabled,
        interval=settings.interval,
    )
    return rules, read_channels(settings.channels)


def _read(file: Path) -> Book:
    """What cannot be read is put aside: what is wrong now will be found again."""
    try:
        return read_book(file)
    except (ValueError, OSError) as error:
        log.warning("alerts_unreadable", file=str(file), error=type(error).__name__)
    try:
        file.replace(file.with_suffix(".unreadable"))
    except OSError as error:
        log.warning("alerts_not_put_aside", file=str(file), error=error.strerror)
    return Book()


def _decided(book: Book) -> bytes:
    """The book without what changes at every look, by which it is seen whether it is worth a write."""
    states = {
        name: msgspec.structs.replace(state, value=None, no_data="")
        for name, state in book.states.items()
    }
    return encode_book(msgspec.structs.replace(book, at=None, states=states))

"""From rules and a snapshot to states: inactive, pending, firing, resolved. No clock, no file, no network.

Invariants: nothing fires without a value; no data ends no alert that fires; time that was not watched counts for
nothing, so a clock that jumps neither fires nor ends anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from kvops.alerts.rates import RisingWindow
from kvops.alerts.readings import counter
from kvops.alerts.rules import AbsenceRule, BurnRule, RateRule, Rule, ThresholdRule, reader
from kvops.telemetry.snapshot import NodeSnapshot, NotExposed
from kvops.units import format_duration

Phase = Literal["inactive", "pending", "firing", "resolved"]
STALE_AFTER = 60.0
"""Seconds after which a gauge that was not told again is no value any more."""
SHOW_RESOLVED = 900.0
"""Seconds for which a resolved alert is still shown as such."""


class RuleState(msgspec.Struct, frozen=True):
    """Where a rule stands. Times are Unix seconds."""

    phase: Phase = "inactive"
    since: float = 0.0
    """When it entered the phase; of a resolved one, when it ended."""
    started_at: float = 0.0
    """Of one that fires or is resolved: when it began to fire."""
    value: float | None = None
    no_data: str = ""
    """Why there is no value."""
    labels: dict[str, str] = {}


@dataclass(frozen=True)
class Judgement:
    """What a rule's condition says of one moment."""

    value: float | None = None
    bad: bool = False
    still_bad: bool = False
    """The condition of an alert that fires already."""
    no_data: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


class Evaluator:
    """`states` and `at` are those of the last evaluation before a restart. `longest_gap`: seconds between two

    evaluations beyond which the time between was not watched.
    """

    def __init__(
        self,
        rules: Sequence[Rule],
        states: Mapping[str, RuleState] | None = None,
        at: float | None = None,
        *,
        longest_gap: float = 60.0,
    ) -> None:
        self.rules = tuple(rules)
        self.at = at
        known = states or {}
        self.states = {rule.name: known.get(rule.name, RuleState()) for rule in rules}
        self._longest_gap = longest_gap
        self._windows = {
            (name, seconds): RisingWindow(seconds)
            for rule in rules
            for name, seconds in _rising(rule)
        }

    def step(self, snapshot: NodeSnapshot, now: float) -> dict[str, RuleState]:
        """The states at `now`, which are also kept for the next step."""
        self._bridge_gap(now)
        self._feed(snapshot, now)
        self.states = {
            rule.name: advance(self.states[rule.name], self._judge(rule, snapshot, now), rule, now)
            for rule in self.rules
        }
        self.at = now
        return self.states

    def _bridge_gap(self, now: float) -> None:
        if self.at is None or 0 <= now - self.at <= self._longest_gap:
            return
        unseen = now - self.at
        for window in self._windows.values():
            window.forget_all()
        self.states = {name: _shifted(state, unseen, now) for name, state in self.states.items()}

    def _feed(self, snapshot: NodeSnapshot, now: float) -> None:
        for (name, _), window in self._windows.items():
            reading = counter(name).read(snapshot)
            if not isinstance(reading, NotExposed):
                window.add(now, reading.value)

    def _judge(self, rule: Rule, snapshot: NodeSnapshot, now: float) -> Judgement:
        match rule:
            case ThresholdRule():
                return _judge_threshold(rule, snapshot, now)
            case AbsenceRule():
                return _judge_absence(rule, snapshot, now)
            case RateRule():
                reading = rule.counter.read(snapshot)
                if isinstance(reading, NotExposed):
                    return Judgement(no_data=reading.reason)
                rate = self._windows[rule.reading, rule.window].rate(now)
                return _judge_value(rule, rate, "watched for too short a time yet")
            case BurnRule():
                return self._judge_burn(rule, now)

    def _judge_burn(self, rule: BurnRule, now: float) -> Judgement:
        asked = self._increase(rule.total, rule.long, now)
        long, short = (self._share_bad(rule, window, now) for window in (rule.long, rule.short))
        if asked is None or long is None or short is None:
            return Judgement(no_data="watched for too short a time yet")
        bad = asked >= rule.least_requests and long > rule.limit and short > rule.limit
        return Judgement(None if short != short else short, bad, bad)

    def _share_bad(self, rule: BurnRule, window: float, now: float) -> float | None:
        """NaN without requests: no share at all, which is over no limit."""
        total = self._increase(rule.total, window, now)
        part = self._increase(rule.bad or rule.good, window, now)
        if total is None or part is None:
            return None
        share = part / total if total else float("nan")
        return share if rule.bad else 1 - share

    def _increase(self, names: Iterable[str], window: float, now: float) -> float | None:
        parts = [self._windows[name, window].increase(now) for name in names]
        known = [part for part in parts if part is not None]
        return sum(known) if len(known) == len(parts) else None


def advance(state: RuleState, judged: Judgement, rule: Rule, now: float) -> RuleState:
    """The next state of one rule."""
    seen = msgspec.structs.replace(state, value=judged.value, no_data=judged.no_data)
    if judged.no_data and state.phase == "firing":
        return seen
    active = judged.still_bad if state.phase == "firing" else judged.bad
    if active and not judged.no_data:
        return _active(seen, judged, rule, now)
    if state.phase == "firing":
        return msgspec.structs.replace(seen, phase="resolved", since=now)
    if state.phase == "pending" or (
        state.phase == "resolved" and now - state.since >= SHOW_RESOLVED
    ):
        return RuleState("inactive", now, value=judged.value, no_data=judged.no_data)
    return seen


def _active(seen: RuleState, judged: Judgement, rule: Rule, now: float) -> RuleState:
    """Another set of labels is another alert."""
    labels = dict(judged.labels)
    goes_on = seen.phase in ("pending", "firing") and seen.labels == labels
    since = seen.since if goes_on else now
    if goes_on and seen.phase == "firing":
        return seen
    if now - since >= rule.hold:
        return RuleState("firing", now, now, judged.value, labels=labels)
    return RuleState("pending", since, value=judged.value, labels=labels)


def _shifted(state: RuleState, unseen: float, now: float) -> RuleState:
    """A pending one keeps the time that it was watched for; nothing began in the future."""
    if state.phase == "pending":
        return msgspec.structs.replace(state, since=state.since + unseen)
    return msgspec.structs.replace(
        state, since=min(state.since, now), started_at=min(state.started_at, now)
    )


def _judge_threshold(rule: ThresholdRule, snapshot: NodeSnapshot, now: float) -> Judgement:
    reading = rule.gauge.read(snapshot)
    if isinstance(reading, NotExposed):
        return Judgement(no_data=reading.reason)
    if now - reading.at > STALE_AFTER:
        return Judgement(no_data=f"last told {format_duration(now - reading.at)} ago")
    return _judge_value(rule, reading.value, "", rule.gauge.labels(snapshot))


def _judge_value(
    rule: ThresholdRule | RateRule,
    value: float | None,
    missing: str,
    labels: Mapping[str, str] | None = None,
) -> Judgement:
    if value is None:
        return Judgement(no_data=missing)
    return Judgement(value, rule.bad(value), rule.still_bad(value), labels=labels or {})


def _judge_absence(rule: AbsenceRule, snapshot: NodeSnapshot, now: float) -> Judgement:
    """Its value is the reading's age; without a reading there is none, which is what it waits for."""
    reading = reader(rule)(snapshot)
    if isinstance(reading, NotExposed):
        return Judgement(None, True, True)
    age = max(0.0, now - reading.at)
    stale = age > rule.stale_after
    return Judgement(age, stale, stale)


def _rising(rule: Rule) -> list[tuple[str, float]]:
    """Counters and the windows over which their rise is asked for."""
    match rule:
        case RateRule():
            return [(rule.reading, rule.window)]
        case BurnRule():
            names = (*rule.total, *rule.bad, *rule.good)
            return [(name, window) for name in names for window in (rule.long, rule.short)]
        case _:
            return []

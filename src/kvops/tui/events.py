"""What happened to a node between two polls, in words."""

from __future__ import annotations

from collections.abc import Iterator

from kvops.telemetry.poller import PollState
from kvops.telemetry.snapshot import Known, NodeSnapshot, Reading
from kvops.tui.text import clean
from kvops.tui.view import Event, Level
from kvops.units import format_duration


def events_between(before: PollState, after: PollState, now: float) -> Iterator[Event]:
    for level, text in _changes(before, after, now):
        yield Event(now, level, after.name, clean(text))


def _changes(before: PollState, after: PollState, now: float) -> Iterator[tuple[Level, str]]:
    if after.error is not None:
        if before.error is None or type(before.error) is not type(after.error):
            word = "not reached" if after.snapshot is None else "lost"
            yield ("WARN" if after.snapshot is None else "CRIT"), f"{word}: {after.error.message}"
        return
    if before.error is not None and before.received_at is not None:
        yield "INFO", f"back after {format_duration(now - before.received_at)}"
    if after.snapshot is None:
        return
    if before.snapshot is None:
        yield (
            "INFO",
            f"seen: {after.snapshot.engine} {after.snapshot.engine_version}, state {after.snapshot.state}",
        )
    elif before.snapshot is not after.snapshot:
        yield from _snapshot_changes(before.snapshot, after.snapshot)


def _snapshot_changes(old: NodeSnapshot, new: NodeSnapshot) -> Iterator[tuple[Level, str]]:
    if old.state != new.state:
        level: Level = "CRIT" if new.state in ("stalled", "failed") else "INFO"
        reason = f" ({new.state_reason})" if new.state_reason else ""
        yield level, f"state {old.state} to {new.state}{reason}"
    if _restarted(old, new):
        yield "WARN", "the node was restarted: its counters began again"
    if isinstance(old.progress, Known) and isinstance(new.progress, Known):
        restarts = new.progress.value.engine_restarts - old.progress.value.engine_restarts
        if restarts > 0:
            yield (
                "CRIT",
                f"the engine process was restarted (now {new.progress.value.engine_restarts} times)",
            )
    old_hash, new_hash = old.config_hash, new.config_hash
    if _text(old_hash) and _text(new_hash) and _text(old_hash) != _text(new_hash):
        yield "INFO", f"configuration {_text(old_hash)[:8]} to {_text(new_hash)[:8]}"


def _text(reading: Reading[str]) -> str:
    return reading.value if isinstance(reading, Known) else ""


def _restarted(old: NodeSnapshot, new: NodeSnapshot) -> bool:
    if not isinstance(old.uptime_seconds, Known) or not isinstance(new.uptime_seconds, Known):
        return False
    return new.uptime_seconds.value < old.uptime_seconds.value

"""From readings to what is wrong with a node, in an operator's words. Pure; all thresholds are here."""

from __future__ import annotations

from collections.abc import Iterator

from kvops.errors import NodeNotFound, NodeUnauthorized, UsageError
from kvops.telemetry.history import History
from kvops.telemetry.poller import PollState
from kvops.telemetry.snapshot import Known, NodeSnapshot
from kvops.tui.view import Finding, Level, NodeView, Status
from kvops.units import format_bytes, format_duration, format_ratio

STALE_INTERVALS = 3
"""Polls that may be missed before values stop being shown as live."""
DOWN_AFTER = 10.0
"""Seconds without an answer after which a node counts as down."""
KV_WARN, KV_CRIT = 0.85, 0.95
QUEUE_CRIT = 0.9
"""Of the queue's bound."""
OLDEST_WARN = 10.0
ERROR_WARN, ERROR_CRIT = 0.05, 0.2
MEMORY_WARN = 0.03
"""Of the device's memory left free."""
_ALERT_LEVELS: dict[str, Level] = {"critical": "CRIT", "warning": "WARN", "info": "INFO"}
_FILES = {"api_keys": "keys"}
_TITLES = {"DENIED": "access denied", "UNSEEN": "not looked at"}
_BUSY_STATES = {"loading": "LOAD", "restarting": "LOAD", "stopping": "LOAD", "draining": "DRAIN"}


def assess(poll: PollState, history: History, *, interval: float, now: float) -> NodeView:
    """The node as the screens show it, with its status and the findings behind it, gravest first."""
    reach = _reach(poll, interval, now)
    findings = [*_connection_findings(poll, now, reach)]
    if poll.snapshot is not None and reach is None:
        findings += snapshot_findings(poll.snapshot, history, now)
    findings.sort(key=lambda finding: ("CRIT", "WARN", "INFO").index(finding.level))
    status = reach or _status(poll.snapshot, findings)
    return NodeView(poll, history, interval, now, status, tuple(findings))


def _reach(poll: PollState, interval: float, now: float) -> Status | None:
    """The status that the connection alone decides; None when the last snapshot is live."""
    age = None if poll.received_at is None else now - poll.received_at
    if isinstance(poll.error, NodeUnauthorized):
        return "DENIED"
    if isinstance(poll.error, UsageError) and age is None:
        return "UNSEEN"
    if poll.error is not None and (
        age is None or age > DOWN_AFTER or isinstance(poll.error, NodeNotFound)
    ):
        return "DOWN"
    if age is None:
        return "WAIT"
    return "STALE" if age > max(STALE_INTERVALS * interval, 2.0) else None


def _status(snapshot: NodeSnapshot | None, findings: list[Finding]) -> Status:
    levels = {finding.level for finding in findings}
    if snapshot is None:
        return "WAIT"
    if snapshot.state in ("stalled", "failed") or "CRIT" in levels:
        return "CRIT"
    if snapshot.state in _BUSY_STATES:
        return "LOAD" if _BUSY_STATES[snapshot.state] == "LOAD" else "DRAIN"
    return "WARN" if "WARN" in levels else "OK"


def _connection_findings(poll: PollState, now: float, reach: Status | None) -> Iterator[Finding]:
    if poll.error is None:
        if reach == "STALE":
            yield Finding("WARN", "no new snapshot", "the last poll has not come back yet")
        return
    retry = (
        "" if poll.next_try_at is None else f"next try in {max(0.0, poll.next_try_at - now):.0f} s"
    )
    tries = f"{poll.failures} polls failed in a row; {retry}" if poll.failures > 1 else retry
    level = "CRIT" if reach in ("DOWN", "DENIED") else "WARN"
    title = _TITLES.get(reach or "", "no answer")
    yield Finding("CRIT" if level == "CRIT" else "WARN", title, poll.error.message, poll.error.hint)
    yield Finding("INFO", "retrying", tries)


def snapshot_findings(snapshot: NodeSnapshot, history: History, now: float) -> Iterator[Finding]:
    yield from _state_findings(snapshot)
    yield from _progress_findings(snapshot)
    yield from _kv_findings(snapshot, history, now)
    yield from _queue_findings(snapshot)
    yield from _traffic_findings(snapshot)
    yield from _memory_findings(snapshot)
    yield from _upkeep_findings(snapshot)
    yield from _alert_findings(snapshot)


def _state_findings(snapshot: NodeSnapshot) -> Iterator[Finding]:
    if snapshot.state == "ready":
        return
    level = "CRIT" if snapshot.state in ("stalled", "failed") else "INFO"
    yield Finding(
        "CRIT" if level == "CRIT" else "INFO",
        f"state {snapshot.state}",
        snapshot.state_reason or "no reason given",
    )


def _progress_findings(snapshot: NodeSnapshot) -> Iterator[Finding]:
    if not isinstance(snapshot.progress, Known):
        return
    progress = snapshot.progress.value
    if progress.invariant_violations:
        yield Finding(
            "CRIT", "block pool broken", f"{progress.invariant_violations} invariants do not hold",
            "drain and restart the node; report it with its log",
        )  # fmt: skip
    if progress.engine_restarts:
        yield Finding(
            "INFO",
            "engine restarts",
            f"{progress.engine_restarts} since the node started",
            "see its log",
        )


def _kv_findings(snapshot: NodeSnapshot, history: History, now: float) -> Iterator[Finding]:
    if not isinstance(snapshot.kv, Known):
        return
    kv = snapshot.kv.value
    waiting = isinstance(snapshot.queue, Known) and snapshot.queue.value.waiting > 0
    used = f"{format_ratio(kv.usage_ratio)} of {kv.total_blocks} blocks"
    if kv.usage_ratio >= KV_CRIT and waiting:
        yield Finding(
            "CRIT",
            "KV pressure",
            f"{used} held while requests wait",
            "send less, or enlarge kv_cache",
        )
    elif kv.usage_ratio >= KV_WARN:
        yield Finding(
            "WARN", "KV high", f"{used} held, limit {format_ratio(KV_WARN)}", "watch preemptions"
        )
    preempted = history.rise("preemptions", end=now, seconds=60)
    if preempted:
        yield Finding(
            "WARN", "preemptions", f"{preempted:.0f} requests put back in the last minute",
            "lower runtime.max_batch_size or enlarge kv_cache",
        )  # fmt: skip


def _queue_findings(snapshot: NodeSnapshot) -> Iterator[Finding]:
    if not isinstance(snapshot.queue, Known):
        return
    queue = snapshot.queue.value
    if queue.max_waiting and queue.waiting >= QUEUE_CRIT * queue.max_waiting:
        yield Finding(
            "CRIT", "queue full", f"{queue.waiting} of {queue.max_waiting} places taken: new requests get 429",
            "add a node, or raise runtime.max_queue",
        )  # fmt: skip
    elif queue.waiting and queue.running >= queue.max_running:
        yield Finding("INFO", "slots taken", f"all {queue.max_running} run, {queue.waiting} wait")
    if queue.oldest_wait_seconds is not None and queue.oldest_wait_seconds >= OLDEST_WARN:
        yield Finding(
            "WARN", "long wait", f"the oldest waits {format_duration(queue.oldest_wait_seconds)}"
        )


def _traffic_findings(snapshot: NodeSnapshot) -> Iterator[Finding]:
    if not isinstance(snapshot.traffic, Known):
        return
    traffic = snapshot.traffic.value
    ratio = traffic.error_ratio
    if ratio is None or ratio < ERROR_WARN:
        return
    # No reason is named: rejections are counted by reason since the start, not of these seconds.
    window = format_duration(traffic.window_seconds)
    text = f"{format_ratio(ratio)} of the requests of the last {window}"
    remedy = "kvops node logs says of what; kvops snapshot has rejections by reason since the start"
    yield Finding("CRIT" if ratio >= ERROR_CRIT else "WARN", "errors", text, remedy)


def _memory_findings(snapshot: NodeSnapshot) -> Iterator[Finding]:
    if not isinstance(snapshot.memory, Known):
        return
    memory = snapshot.memory.value
    if memory.total and memory.free < MEMORY_WARN * memory.total:
        text = (
            f"{format_bytes(memory.free)} of {format_bytes(memory.total)} left on {memory.device}"
        )
        yield Finding("WARN", "memory short", text, "lower kv_cache.memory_fraction")


def _upkeep_findings(snapshot: NodeSnapshot) -> Iterator[Finding]:
    if not isinstance(snapshot.upkeep, Known):
        return
    upkeep = snapshot.upkeep.value
    for what in upkeep.stale_files:
        text = f"the node still uses the {_FILES.get(what, what)} of before"
        yield Finding("WARN", "stale file", text, "kvops node logs says why")
    if upkeep.audit_failing:
        text = f"it cannot be written; {upkeep.audit_dropped} records lost since the start"
        yield Finding("WARN", "audit failing", text, "kvops node logs says why; is the disk full?")


def _alert_findings(snapshot: NodeSnapshot) -> Iterator[Finding]:
    """The node's own rules. One that is silenced or acknowledged is somebody's already."""
    if not isinstance(snapshot.alerts, Known):
        return
    for alert in snapshot.alerts.value.active:
        if alert.phase != "firing":
            continue
        taken = "silenced" if alert.silenced else "acknowledged" if alert.acknowledged else ""
        level = "INFO" if taken else _ALERT_LEVELS[alert.severity]
        text = f"{alert.rule}: {alert.summary}" + (f" ({taken})" if taken else "")
        yield Finding(level, "alert", text, alert.remedy)


def binding_limit(node: NodeView) -> str:
    """What holds back more throughput now, in one word."""
    if node.snapshot is None or not node.fresh:
        return "UNKNOWN"
    titles = {finding.title for finding in node.findings}
    if titles & {"KV pressure", "preemptions"}:
        return "KV_PRESSURE"
    if "queue full" in titles:
        return "QUEUE_FULL"
    if "slots taken" in titles:
        return "SEQ_CAP"
    queue = node.snapshot.queue
    busy = isinstance(queue, Known) and queue.value.running > 0
    return "NONE" if busy else "IDLE"

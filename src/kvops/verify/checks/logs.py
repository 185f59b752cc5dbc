"""Is the node's log free of what an operator would be woken for: failed loads, lack of memory, tracebacks, storms?"""

from __future__ import annotations

import re
import time
from collections import Counter, deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from pydantic import Field

from kvops.telemetry.snapshot import Known, NodeSnapshot
from kvops.verify import beginning
from kvops.verify.beginning import Since
from kvops.verify.check import Check, Outcome, Parameters, require, warn
from kvops.verify.context import Context
from kvops.verify.logfiles import Line, entry_of, lines_of, log_files, no_log, started_at

EXPECTED = "no failed load, lack of memory, traceback, engine death or storm"
FAULTS = {
    "load failure": r"failed to load|error (while )?loading|loading .{0,80}(failed|error)|model corrupt",
    "allocation error": r"out of memory|outofmemory|cannot allocate memory|failed to allocate|allocation .{0,60}failed"
    r"|no available memory for the cache|cuda error|cudamalloc|not enough .{0,20}kv",
    "traceback": r"traceback \(most recent call last\)|panicked at|segmentation fault|core dumped|fatal python error",
    "engine death": r"engine lost|the engine ends|enginedeaderror|engine ?core.{0,40}(died|failed)"
    r"|engine process failed",
}
_FAULTS = {kind: re.compile(pattern, re.IGNORECASE) for kind, pattern in FAULTS.items()}
_STORMY = re.compile(
    r"retry|retri|reconnect|preempt|restart|backing off|backoff|timed? ?out", re.IGNORECASE
)
_DIGITS = re.compile(r"[0-9a-f]{6,}|\d+")
_PLAIN_ERROR = re.compile(r"^(\S+ )?(ERROR|CRITICAL|FATAL)\b|\] ?(ERROR|CRITICAL|FATAL)\b")
STORM_SECONDS = 60.0
LIBRARY = "said"
"""Event of what a library told a kvops node's log. asyncio does at every write to a client that has hung up."""


class LogParameters(Parameters):
    log_file: str | None = None
    """The node's log; default: KVOPS_NODE_LOG, else what a kvops node of this machine writes."""
    storm: int = Field(default=30, ge=2)
    """Lines of one kind about retries, restarts or preemptions within a minute that make a storm."""
    preemption_ratio: float = Field(default=0.2, gt=0)
    """Preemptions for each request since the node started."""


class Fault(msgspec.Struct, frozen=True):
    kind: str
    line: int
    at: float | None
    file: str
    event: str = ""
    """Of a kvops node's own line; such names hold no text of others."""


async def clean(context: Context, parameters: LogParameters) -> Outcome:
    files = log_files(context, parameters.log_file)
    snapshot = None if context.node is None else await context.node.snapshot()
    since_then = _since(context, snapshot)
    if not files and not since_then.faults:
        no_log()
    read, faults = _scan(files, parameters.storm)
    # A time in the log has whole seconds in many engines.
    now = [f for f in faults if f.at is not None and f.at >= context.began - 1.0]
    since = started_at(context)
    before = [
        f for f in faults if f not in now and (f.at is None or since is None or f.at >= since)
    ]
    told = [*([_counted(now)] if now else []), *since_then.faults]
    require(
        not told,
        observed=f"since the gate began: {', '.join(told)}",
        expected=EXPECTED,
        remedy=f"read {now[0].file} at the lines that the evidence names: kvops node logs"
        if now
        else "read what the node's log says of it: kvops node logs",
        n=max(read, 1),
        faults=_listed(now),
        lives=since_then.faults,
    )
    remarks = [*since_then.remarks, *_remarks(snapshot, parameters)]
    if before:
        remarks.append(f"before the gate began: {_counted(before)}")
    if remarks:
        warn(
            observed="; ".join(remarks),
            expected=EXPECTED,
            remedy="know the cause before the node takes traffic: kvops node logs",
            n=read,
            faults=_listed(before),
        )
    return Outcome(
        verdict="pass",
        observed=f"{read} lines of {len(files)} files are clean",
        expected=EXPECTED,
        n=read,
        evidence={"files": [file.name for file in files], "lines": read},
    )


def _scan(files: Iterable[Path], storm: int) -> tuple[int, list[Fault]]:
    """How many lines were read, and what was found in them."""
    read, faults = 0, []
    for file in files:
        watch = StormWatch(storm)
        for line in lines_of(file):
            read += 1
            kind = fault_of(line.text) or watch.storm_of(line)
            if kind:
                event = str(entry_of(line.text).get("event", ""))[:60]
                faults.append(Fault(kind, line.number, line.at, file.name, event))
    return read, faults


def fault_of(text: str) -> str | None:
    """What a line of a log tells of; None for an ordinary one. Fields of kvops' own lines hold no message of others."""
    entry = entry_of(text)
    said = (
        str(entry.get("event") or entry.get("message") or "").replace("_", " ") if entry else text
    )
    for kind, pattern in _FAULTS.items():
        if pattern.search(said):
            return kind
    if entry.get("level") in ("error", "critical"):
        return f"error {str(entry.get('event'))[:40]}" if entry.get("event") else "error"
    return "error" if not entry and _PLAIN_ERROR.search(text[:200]) else None


class StormWatch:
    """Finds lines of one kind that come too often: the same words with other numbers, within a minute."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._recent: dict[str, deque[float | None]] = {}
        self._told: set[str] = set()

    def storm_of(self, line: Line) -> str | None:
        """Once a kind, with the line that made it a storm."""
        kind = skeleton(line.text)
        if kind is None or kind in self._told:
            return None
        times = self._recent.setdefault(kind, deque(maxlen=self._most))
        times.append(line.at)
        first = times[0]
        dense = line.at is None or first is None or line.at - first <= STORM_SECONDS
        if len(times) < self._most or not dense:
            return None
        self._told.add(kind)
        return "retry storm"


def skeleton(text: str) -> str | None:
    """The words of a line about retries and the like, without its numbers; None for a line about anything else."""
    entry = entry_of(text)
    if entry:
        event, level = str(entry.get("event", "")), entry.get("level")
        own = event != LIBRARY and (level == "warning" or _STORMY.search(event))
        return event if own else None
    return _DIGITS.sub("#", text)[:200] if _STORMY.search(text) else None


def _since(context: Context, snapshot: NodeSnapshot | None) -> Since:
    if context.first is None or context.part is None:
        return Since()
    now, elapsed = beginning.of(snapshot), time.monotonic() - context.clock
    return beginning.since(context.first, context.part, now, elapsed)


def _remarks(snapshot: NodeSnapshot | None, parameters: LogParameters) -> list[str]:
    return [] if snapshot is None else counter_remarks(snapshot, parameters.preemption_ratio)


def counter_remarks(snapshot: NodeSnapshot, preemption_ratio: float) -> list[str]:
    """What a node's counters say has gone wrong since it started."""
    remarks = []
    progress, traffic, upkeep = snapshot.progress, snapshot.traffic, snapshot.upkeep
    if isinstance(progress, Known) and progress.value.engine_restarts:
        reasons = ", ".join(f"{n} {why}" for why, n in progress.value.restarts_by_reason.items())
        remarks.append(
            f"{progress.value.engine_restarts} engine restarts ({reasons or 'no reason'})"
        )
    if isinstance(traffic, Known) and (
        n := traffic.value.rejections_by_reason.get("internal_error")
    ):
        remarks.append(f"{n} internal errors")
    if isinstance(upkeep, Known) and upkeep.value.log_dropped:
        remarks.append(f"{upkeep.value.log_dropped} log lines lost, so the log is not whole")
    kv = snapshot.kv
    if isinstance(kv, Known) and isinstance(traffic, Known):
        requests = sum(traffic.value.requests_by_outcome.values())
        if requests and kv.value.preemptions / requests > preemption_ratio:
            remarks.append(f"{kv.value.preemptions} preemptions in {requests} requests")
    return remarks


def _counted(faults: list[Fault]) -> str:
    kinds = Counter(f"{f.kind} ({f.event})" if f.event else f.kind for f in faults)
    return ", ".join(f"{count} × {kind}" for kind, count in kinds.most_common(5))


def _listed(faults: list[Fault]) -> list[dict[str, Any]]:
    """Places only: a line of another engine may quote a prompt."""
    return [msgspec.structs.asdict(fault) for fault in faults[:20]]


CLEAN = Check(
    id="logs.clean",
    title="Clean log",
    purpose="The log tells of no failed load, lack of memory, traceback, dead engine or retry storm.",
    parameters=LogParameters,
    run=clean,
    area="V3",
    closing=True,
)

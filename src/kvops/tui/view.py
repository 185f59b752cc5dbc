"""What the screens draw: an immutable picture of the fleet at one moment. Freezing the console keeps one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from kvops.telemetry.history import History
from kvops.telemetry.poller import PollState
from kvops.telemetry.snapshot import Known, NodeSnapshot

Status = Literal["DOWN", "CRIT", "DENIED", "UNSEEN", "STALE", "WARN", "LOAD", "DRAIN", "WAIT", "OK"]
"""By urgency. WAIT: not polled yet. DENIED: the node refuses the token. UNSEEN: how to look is not known."""
SEVERITY: tuple[Status, ...] = (
    "DOWN",
    "CRIT",
    "DENIED",
    "UNSEEN",
    "STALE",
    "WARN",
    "LOAD",
    "DRAIN",
    "WAIT",
    "OK",
)
Level = Literal["CRIT", "WARN", "INFO"]


@dataclass(frozen=True)
class Finding:
    level: Level
    title: str
    detail: str
    remedy: str = ""


@dataclass(frozen=True)
class Event:
    at: float
    level: Level
    node: str
    text: str


@dataclass(frozen=True)
class NodeView:
    poll: PollState
    history: History
    interval: float
    now: float
    status: Status = "WAIT"
    findings: tuple[Finding, ...] = ()
    frozen_for: float = 0.0
    """Seconds since this picture was taken."""

    @property
    def name(self) -> str:
        return self.poll.name

    @property
    def snapshot(self) -> NodeSnapshot | None:
        return self.poll.snapshot

    @property
    def age(self) -> float | None:
        """Seconds since the last good snapshot came, as of now: a frozen picture goes on ageing."""
        received_at = self.poll.received_at
        return None if received_at is None else max(0.0, self.now + self.frozen_for - received_at)

    @property
    def engine_lag(self) -> float | None:
        """How much older the engine's own figures are than the snapshot, while it has work to do; seconds."""
        snapshot = self.poll.snapshot
        if (
            snapshot is None
            or not isinstance(snapshot.kv, Known)
            or not isinstance(snapshot.progress, Known)
        ):
            return None
        return snapshot.taken_at - snapshot.kv.at if snapshot.progress.value.work_pending else None

    @property
    def fresh(self) -> bool:
        """Whether the values may be shown as live."""
        return self.status not in ("STALE", "DOWN", "DENIED", "UNSEEN", "WAIT")


@dataclass(frozen=True)
class FleetView:
    now: float
    nodes: tuple[NodeView, ...] = ()
    events: tuple[Event, ...] = field(default=())
    """Newest first."""

    def node(self, name: str | None) -> NodeView | None:
        return next((node for node in self.nodes if node.name == name), None)

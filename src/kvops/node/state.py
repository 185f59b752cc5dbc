"""The node as one picture: puts together what the daemon measured and what the engine last said, as a NodeSnapshot.

A reading made of both is as old as what the engine said.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, get_args

import msgspec

from kvops import __version__
from kvops.config.load import LoadedConfig
from kvops.config.settings import Settings
from kvops.node.admission import Admission
from kvops.node.deaths import RestartReason
from kvops.node.generation import Choice
from kvops.node.gpus import GpuReader
from kvops.node.meter import Meter
from kvops.node.supervisor import Supervisor
from kvops.node.wire import EngineInfo, EngineStats
from kvops.telemetry.snapshot import (
    AlertsState,
    Gpu,
    Known,
    KvUsage,
    MemoryLedger,
    ModelInfo,
    NodeSnapshot,
    NodeState,
    NotExposed,
    PrefixCache,
    Progress,
    QueueState,
    Reading,
    RequestRow,
    RequestState,
    TenantUsage,
    Upkeep,
)

T = TypeVar("T")
_NO_ENGINE = NotExposed("the engine is not running")


def _no_alerts() -> Reading[AlertsState]:
    return NotExposed("no alerts are evaluated yet")


def _no_upkeep() -> Reading[Upkeep]:
    return NotExposed("not told yet")


@dataclass
class NodeView:
    """Read-only access to everything a snapshot, a metric or a health route is made of."""

    settings: Settings
    supervisor: Supervisor
    admission: Admission
    meter: Meter
    model_name: str
    revision: str
    url: str = ""
    tokenizer_loaded: bool = False
    alerts: Callable[[], Reading[AlertsState]] = _no_alerts
    upkeep: Callable[[], Reading[Upkeep]] = _no_upkeep
    gpu: GpuReader = field(default_factory=GpuReader)

    @property
    def loaded(self) -> LoadedConfig:
        return self.settings.loaded

    @property
    def stats(self) -> EngineStats | None:
        return self.supervisor.stats

    def state(self) -> tuple[NodeState, str]:
        """The state and why, in words."""
        engine, door = self.supervisor.state, self.admission.door
        if engine == "failed":
            return "failed", "the engine died too often"
        if door == "stopping":
            return "stopping", f"{self.admission.in_flight} requests in flight"
        if self.supervisor.stalled:
            return (
                "stalled",
                f"no sign of progress for {self.supervisor.seconds_without_progress():.0f} s",
            )
        if engine == "restarting":
            return "restarting", "the engine died and is being restarted"
        if door == "draining":
            return "draining", f"{self.admission.in_flight} requests in flight"
        if engine == "loading" or not self.tokenizer_loaded:
            return "loading", self.supervisor.loading_phase
        return "ready", ""

    def progresses(self) -> bool:
        """It serves, or is on its way to: not hung, not failed."""
        return self.state()[0] not in ("stalled", "failed")

    def snapshot(self) -> NodeSnapshot:
        now = time.time()
        state, reason = self.state()
        return NodeSnapshot(
            node=self.loaded.config.name,
            engine="kvops",
            engine_version=__version__,
            url=self.url,
            taken_at=now,
            state=state,
            state_reason=reason,
            uptime_seconds=Known(time.monotonic() - self.meter.started_at, now),
            model=self._model(now),
            config_hash=Known(self.loaded.config_hash, now),
            memory=self._memory(),
            kv=self._kv(),
            prefix_cache=self._prefix_cache(),
            queue=Known(self.queue(), self._as_of(now)),
            latency=Known(self.meter.latency(), now),
            traffic=Known(self.meter.traffic(), now),
            progress=Known(self.progress(now), self._as_of(now)),
            gpus=self.gpus(),
            tenants=self._joined(self.tenants(), now),
            requests=self._joined(self.requests(), now),
            upkeep=self.upkeep(),
            alerts=self.alerts(),
        )

    def _as_of(self, now: float) -> float:
        return self.stats.at if self.stats else now

    def _joined(self, rows: tuple[T, ...], now: float) -> Reading[tuple[T, ...]]:
        """Rows whose blocks only the engine knows: without it there is nothing to say, unless there are none."""
        return Known(rows, self._as_of(now)) if self.stats or not rows else _NO_ENGINE

    def queue(self) -> QueueState:
        runtime = self.loaded.config.runtime
        running, waiting = self.admission.split()
        classes = Counter({"online": 0, "normal": 0, "batch": 0})
        classes.update(choice.submit.priority for choice in waiting)
        since = min((choice.waiting_since for choice in waiting), default=None)
        return QueueState(
            running=len(running),
            waiting=len(waiting),
            oldest_wait_seconds=None if since is None else time.monotonic() - since,
            max_running=runtime.max_running,
            max_waiting=runtime.max_queue,
            waiting_by_class=dict(classes),
        )

    def progress(self, now: float) -> Progress:
        total = self.supervisor.totals.with_current(self.stats)
        last = self.stats.last_step_at if self.stats else None
        return Progress(
            steps=total.steps,
            last_step_age_seconds=None if last is None else max(0.0, now - last),
            work_pending=self.supervisor.work_pending,
            engine_restarts=self.supervisor.restarts.total(),
            invariant_violations=total.invariant_violations,
            quarantined=self.admission.quarantine.quarantined,
            restarts_by_reason={
                why: self.supervisor.restarts[why] for why in get_args(RestartReason)
            },
        )

    def tenants(self) -> tuple[TenantUsage, ...]:
        running, waiting = (
            Counter(choice.submit.tenant for choice in half) for half in self.admission.split()
        )
        blocks = self.stats.tenant_blocks if self.stats else {}
        info = self.supervisor.info
        known = {name for name in blocks if name} | set(self.loaded.config.tenants)
        names = sorted(running.keys() | waiting.keys() | known)
        return tuple(
            TenantUsage(
                tenant=name,
                running=running[name],
                waiting=waiting[name],
                kv_blocks=blocks.get(name, 0),
                kv_quota_blocks=info.kv_quota_of(name) if info else None,
            )
            for name in names
        )

    def requests(self) -> tuple[RequestRow, ...]:
        known = {row.request_id: row for row in self.stats.requests} if self.stats else {}
        return tuple(
            _row(choice, known.get(choice.request_id)) for choice in self.admission.choices()
        )

    def gpus(self) -> Reading[tuple[Gpu, ...]]:
        device = self.supervisor.info.device if self.supervisor.info else "cpu"
        if not device.startswith("cuda"):
            return NotExposed("the node runs on the CPU")
        named = self.stats.memory.device if self.stats else ""  # `cuda:0 NVIDIA H200`
        return self.gpu.read(device, named.partition(" ")[2])

    def _model(self, now: float) -> Reading[ModelInfo]:
        info = self.supervisor.info
        if info is None:
            return NotExposed("the model is being loaded")
        return Known(_model_info(info, self.model_name, self.revision), now)

    def _memory(self) -> Reading[MemoryLedger]:
        return Known(self.stats.memory, self.stats.at) if self.stats else _NO_ENGINE

    def _kv(self) -> Reading[KvUsage]:
        if self.stats is None:
            return _NO_ENGINE
        total = self.supervisor.totals.with_current(self.stats)
        usage = msgspec.structs.replace(
            self.stats.kv, evictions=total.evictions, preemptions=total.preemptions
        )
        return Known(usage, self.stats.at)

    def _prefix_cache(self) -> Reading[PrefixCache]:
        if self.stats is None:
            return _NO_ENGINE
        total = self.supervisor.totals.with_current(self.stats)
        cache = msgspec.structs.replace(
            self.stats.prefix_cache, query_tokens=total.query_tokens, hit_tokens=total.hit_tokens
        )
        return Known(cache, self.stats.at)


def _model_info(info: EngineInfo, name: str, revision: str) -> ModelInfo:
    return ModelInfo(
        name=name,
        family=info.spec.family,
        parameters=info.parameters,
        weights_dtype=info.weights_dtype,
        kv_dtype=info.kv_dtype,
        max_model_len=info.max_model_len,
        revision=revision,
    )


def _row(choice: Choice, engine: RequestRow | None) -> RequestRow:
    """Times and counts are the daemon's, which are fresh; blocks and the phase are what the engine said last."""
    now = time.monotonic()
    submit, received = choice.submit, choice.received_at
    waited = (choice.started_at or now) - choice.created_at
    phase: RequestState = "decode" if choice.tokens else "prefill"
    if choice.unstarted:
        phase = "waiting"
    elif engine is not None and engine.state == "preempted":
        phase = "preempted"
    return RequestRow(
        request_id=choice.request_id,
        tenant=submit.tenant,
        priority=submit.priority,
        state=phase,
        prompt_tokens=len(submit.prompt_token_ids),
        generated_tokens=choice.tokens,
        max_tokens=submit.params.max_tokens,
        kv_blocks=engine.kv_blocks if engine else 0,
        cached_tokens=choice.cached_tokens or (engine.cached_tokens if engine else 0),
        age_seconds=now - received,
        wait_seconds=waited,
        ttft_seconds=None if choice.first_token_at is None else choice.first_token_at - received,
        preemptions=engine.preemptions if engine else 0,
    )

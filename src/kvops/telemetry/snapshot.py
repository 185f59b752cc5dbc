"""The one data model of a node's state: console, gate, load runs and `kvops snapshot` all read this.

A reading is a value with the time it was taken, or the reason why it is not exposed. Missing is never zero.
All times are Unix seconds, all sizes bytes, all durations seconds unless a name says otherwise.
"""

from __future__ import annotations

from typing import Generic, Literal, TypeAlias, TypeVar

import msgspec

SCHEMA_VERSION = 1

T = TypeVar("T")


class Known(msgspec.Struct, Generic[T], frozen=True, tag="known", tag_field="reading"):
    """A value and when it was true (Unix seconds, on the node's clock)."""

    value: T
    at: float


class NotExposed(msgspec.Struct, frozen=True, tag="not_exposed", tag_field="reading"):
    """Why a reading is missing, in words for an operator: "vllm 0.32 has no memory ledger"."""

    reason: str


Reading: TypeAlias = Known[T] | NotExposed

CLIENT_FAULTS = frozenset(
    {
        "invalid_request", "context_length_exceeded", "invalid_api_key", "model_not_found", "not_found",
        "method_not_allowed", "body_timeout", "too_large", "forbidden",
    }
)  # fmt: skip
"""Rejections that no change of the node would have turned into an answer: counted, but no sign of trouble there."""
TTFT_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)  # fmt: skip
"""Seconds: the bounds by which first tokens are counted."""

NodeState = Literal["loading", "ready", "draining", "stalled", "restarting", "stopping", "failed"]
RequestState = Literal["waiting", "prefill", "decode", "preempted"]


class ModelInfo(msgspec.Struct, frozen=True):
    name: str
    family: str
    parameters: int
    weights_dtype: str
    kv_dtype: str
    max_model_len: int
    """Longest prompt + output of one request, tokens."""
    revision: str
    """First 12 hex digits of the weights' SHA-256, or a source's own revision."""


class MemoryLedger(msgspec.Struct, frozen=True):
    """Where the device's memory is. weights + kv_reserved + activations + other + free = total."""

    device: str
    """`cpu` or `cuda:0 NVIDIA H200`."""
    total: int
    weights: int
    kv_reserved: int
    activations: int
    """Peak of the working memory of a step."""
    other: int
    """All else that is in use: the runtime, libraries, other processes."""
    free: int
    kv_used: int
    """Part of kv_reserved held by running requests."""
    kv_cached: int
    """Part of kv_reserved that holds reusable prefixes nobody refers to."""


class KvUsage(msgspec.Struct, frozen=True):
    """Block pool. used + cached + free = total blocks."""

    block_size: int
    """Tokens per block."""
    total_blocks: int
    used_blocks: int
    cached_blocks: int
    free_blocks: int
    bytes_per_block: int
    waste_ratio: float
    """Allocated but unused token slots over all slots in held blocks, 0..1."""
    evictions: int
    """Cached blocks reclaimed since start."""
    preemptions: int
    """Requests put back to the queue for want of blocks since start."""
    fragmentation_ratio: float | None = None
    """Held blocks that are not full, over all held blocks, 0..1: the only fragmentation of a pool in which any free
    block serves any request. None where an engine does not tell."""

    @property
    def usage_ratio(self) -> float:
        return self.used_blocks / self.total_blocks if self.total_blocks else 0.0


class PrefixCache(msgspec.Struct, frozen=True):
    """Tokens since start; tokens recomputed after a preemption count in neither."""

    enabled: bool
    query_tokens: int
    hit_tokens: int
    granularity_tokens: int

    @property
    def hit_ratio(self) -> float | None:
        return self.hit_tokens / self.query_tokens if self.query_tokens else None


class QueueState(msgspec.Struct, frozen=True):
    running: int
    waiting: int
    oldest_wait_seconds: float | None
    """Age of the longest-waiting request; None when nothing waits."""
    max_running: int
    max_waiting: int
    waiting_by_class: dict[str, int]


class Percentiles(msgspec.Struct, frozen=True):
    """Exact percentiles over a window; a percentile is None where the samples are too few to claim it.

    p50 asks for 5 samples, p95 for 20, p99 for 100 (at least one sample is then expected above it).
    """

    samples: int
    p50: float | None
    p95: float | None
    p99: float | None
    max: float | None


class LatencyWindow(msgspec.Struct, frozen=True):
    window_seconds: float
    ttft: Percentiles
    inter_token: Percentiles
    queue: Percentiles
    duration: Percentiles


class Traffic(msgspec.Struct, frozen=True):
    """Counters since start, and rates over `window_seconds`."""

    requests_by_outcome: dict[str, int]
    rejections_by_reason: dict[str, int]
    prompt_tokens: int
    generation_tokens: int
    window_seconds: float
    prompt_tokens_per_second: float
    generation_tokens_per_second: float
    requests_per_second: float
    error_ratio: float | None
    """Requests of the window that the node failed or turned away, over all; None without requests. A request
    that is wrong by itself (400, 401, 404, 413 …) is not the node's failure."""
    first_tokens_within: dict[str, dict[str, int]] = {}
    """By tier of prompt length, then by bound in seconds (`"5.0"`; `"+Inf"`: all): requests since start whose first
    token came within it. Empty where an engine does not tell."""
    allocation_failures: int | None = None
    """Steps that the device had no memory for, since start: their requests ended. None where an engine does not
    tell."""


class Progress(msgspec.Struct, frozen=True):
    """Forward progress of the engine: the truth behind health."""

    steps: int
    last_step_age_seconds: float | None
    work_pending: bool
    engine_restarts: int
    invariant_violations: int
    """Block pool invariants found broken; anything but 0 is a defect."""
    restarts_by_reason: dict[str, int] = {}
    """Adds up to `engine_restarts`. Empty where an engine does not tell."""
    quarantined: int | None = None
    """Request shapes that are refused because engines died with them; None where there is no such thing."""


class Gpu(msgspec.Struct, frozen=True):
    index: int
    name: str
    utilization: float | None
    """0..1; None where the driver does not tell, as of a part of a GPU (MIG)."""
    memory_used: int
    memory_total: int


class TenantUsage(msgspec.Struct, frozen=True):
    tenant: str
    running: int
    waiting: int
    kv_blocks: int
    kv_quota_blocks: int | None


class RequestRow(msgspec.Struct, frozen=True):
    """One request in flight. Never holds text."""

    request_id: str
    tenant: str
    priority: str
    state: RequestState
    prompt_tokens: int
    generated_tokens: int
    max_tokens: int
    kv_blocks: int
    cached_tokens: int
    age_seconds: float
    wait_seconds: float
    ttft_seconds: float | None
    preemptions: int


class Upkeep(msgspec.Struct, frozen=True):
    """What the node itself needs to go on telling the truth: its log, its audit, its disk, the files it watches."""

    log_dropped: int
    """Log lines that could not be kept, since start."""
    disk_free: int
    disk_total: int
    """Of the file system that holds the node's state folder."""
    stale_files: tuple[str, ...] = ()
    """Watched files (`api_keys`, `certificate`) of which what was before is still in force."""
    audit_failing: bool = False
    """The last try to write the audit went wrong."""
    audit_dropped: int = 0
    """Audit records that could not be kept, since start."""


class ActiveAlert(msgspec.Struct, frozen=True):
    rule: str
    severity: Literal["info", "warning", "critical"]
    phase: Literal["pending", "firing"]
    since: float
    """Unix seconds at which it entered the phase."""
    summary: str
    remedy: str
    silenced: bool
    acknowledged: bool


class AlertsState(msgspec.Struct, frozen=True):
    """What the node's own rules say, and whether anybody could be told."""

    evaluated_at: float
    rules: tuple[str, ...]
    """Names of all that are evaluated."""
    active: tuple[ActiveAlert, ...]
    deliveries: dict[str, dict[str, int]]
    """By channel, then by outcome (`delivered`, `retried`, `failed`): attempts since the node started."""
    oldest_undelivered_seconds: float
    """Age of the oldest message that a channel has not taken yet; 0 when there is none."""
    drill: str = ""
    """Nonce of the delivery drill that is on."""


class NodeSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    schema_version: int = SCHEMA_VERSION
    node: str
    engine: str
    """`kvops`, `vllm`, `sglang`, `llamacpp` or `tgi`."""
    engine_version: str
    url: str
    taken_at: float
    state: NodeState
    state_reason: str
    uptime_seconds: Reading[float]
    model: Reading[ModelInfo]
    config_hash: Reading[str]
    memory: Reading[MemoryLedger]
    kv: Reading[KvUsage]
    prefix_cache: Reading[PrefixCache]
    queue: Reading[QueueState]
    latency: Reading[LatencyWindow]
    traffic: Reading[Traffic]
    progress: Reading[Progress]
    gpus: Reading[tuple[Gpu, ...]]
    tenants: Reading[tuple[TenantUsage, ...]]
    requests: Reading[tuple[RequestRow, ...]]
    upkeep: Reading[Upkeep] = NotExposed("not told by this node")
    alerts: Reading[AlertsState] = NotExposed("this node evaluates no alerts")


class KvMap(msgspec.Struct, frozen=True):
    """The block pool down-sampled to at most the cells asked for, in block order.

    One letter a cell: `s` shared (a block with more than one reference), `p` private, `c` cached prefix
    without a reference, `f` free, `m` mixed. A cell stands for `blocks_per_cell` blocks (the last may be short).
    """

    total_blocks: int
    blocks_per_cell: int
    cells: str
    at: float


def encode(value: msgspec.Struct) -> bytes:
    """JSON, one line."""
    return msgspec.json.encode(value)


def decode_snapshot(data: bytes) -> NodeSnapshot:
    """Raises msgspec.ValidationError or msgspec.DecodeError on anything that is not a snapshot."""
    return msgspec.json.decode(data, type=NodeSnapshot)


def decode_kv_map(data: bytes) -> KvMap:
    return msgspec.json.decode(data, type=KvMap)

"""What the daemon and the engine process say to each other, and how it is framed.

Frames are a 4-byte little-endian length and a msgpack body over a socketpair: data only, nothing executable.
The daemon sends `Start` once, then `Submit`, `Cancel`, `GetKvMap`, `FlushPrefixCache`, `SetTenants`, `Stop`.
The engine sends `Loading` while it starts, `Ready` once, then `Started` before and `StepDone` after each step
that has something to say, and `EngineStats` at most a few times a second and whenever it falls idle. `Fatal` is its
last word before it exits non-zero. Token ids travel, text never does.
"""

from __future__ import annotations

import socket
from typing import Literal

import msgspec

from kvops.models.evaluation import Evaluation
from kvops.models.spec import ModelSpec
from kvops.node.sampling import SamplingParams
from kvops.telemetry.snapshot import KvMap, KvUsage, MemoryLedger, PrefixCache, RequestRow

MAX_FRAME = 64 * 2**20

FinishReason = Literal["stop", "length", "cancelled", "error"]
PriorityClass = Literal["online", "normal", "batch"]
RANK: dict[PriorityClass, int] = {"online": 0, "normal": 1, "batch": 2}
"""0 is served first."""
WeightsDtype = Literal["auto", "float32", "bfloat16", "int8"]
KvDtype = Literal["auto", "float32", "bfloat16", "int8", "fp8"]


class PoolPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How large the block pool shall be. The first of blocks, bytes, memory_fraction that is set decides."""

    block_size: int
    blocks: int | None = None
    bytes: int | None = None
    memory_fraction: float = 0.5
    """Of the device memory that weights and activations leave free."""
    watermark: float = 0.01
    """Share of blocks that admission leaves free for running requests to grow into."""
    prefix_caching: bool = True
    dtype: KvDtype = "auto"
    """What keys and values are kept in; `auto` follows the weights."""


class KvQuota(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the pool a tenant may hold. The first that is set decides; none of them: no bound."""

    blocks: int | None = None
    bytes: int | None = None
    ratio: float | None = None


class TenantLimits(msgspec.Struct, frozen=True, kw_only=True):
    max_running: int | None = None
    kv_quota: KvQuota = KvQuota()


class Submit(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    tenant: str
    salt: bytes
    """Secret of the tenant that the prefix cache mixes in; never from the client."""
    priority: PriorityClass = "normal"
    leader: str | None = None
    """For n > 1: the sibling whose prefill this request waits for, so that the prompt is computed once."""


class Prefix(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt beginning that is computed before the engine says `Ready`."""

    name: str
    """Names the prefix to an operator: its file."""
    token_ids: tuple[int, ...]
    tenant: str
    salt: bytes
    shared: bool = False
    """All tenants may meet its blocks. Only these very tokens become common property."""

    def submit(self, request_id: str) -> Submit:
        """The request that computes it."""
        return Submit(
            request_id=request_id,
            prompt_token_ids=self.token_ids,
            params=SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True),
            tenant=self.tenant,
            salt=self.salt,
        )


class Start(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    model_path: str
    model_name: str
    revision: str
    max_context_length: int | None
    weights_dtype: WeightsDtype
    pool: PoolPlan
    max_batch_size: int
    """Requests in one step."""
    max_batched_tokens: int
    """Tokens in one step."""
    threads: int | None
    device: str = "auto"
    max_prefill_tokens: int | None = None
    """Prompt tokens in one step while others wait for their next token; None adapts to what a step takes."""
    batch_max_load: int | None = None
    """Batch-class requests start only while fewer online and normal requests are there; None: half a batch."""
    batch_window: float = 0.0
    """Seconds that an idle engine waits after the first arrival, so that more of them share a step."""
    tenants: dict[str, TenantLimits] = {}
    default_tenant: TenantLimits = TenantLimits()
    """For tenants that are not in `tenants`, each on its own."""
    prefixes: tuple[Prefix, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()
    """Of these very files; `auto` follows them."""


class Cancel(msgspec.Struct, frozen=True, tag=True):
    request_id: str


class GetKvMap(msgspec.Struct, frozen=True, tag=True):
    query_id: int
    cells: int


class FlushPrefixCache(msgspec.Struct, frozen=True, tag=True):
    query_id: int


class Stop(msgspec.Struct, frozen=True, tag=True):
    pass


class SetTenants(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """In place of those of `Start`, for requests to come."""

    tenants: dict[str, TenantLimits]
    default_tenant: TenantLimits


ToEngine = Start | Submit | Cancel | GetKvMap | FlushPrefixCache | SetTenants | Stop


class Loading(msgspec.Struct, frozen=True, tag=True):
    """A step of the start-up report, e.g. phase `model loaded`, detail `134.5 M parameters, 2.1 s`. Without a detail:
    a part of the phase is done, and no line of the report."""

    phase: str
    detail: str


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    spec: ModelSpec
    parameters: int
    weights_dtype: str
    kv_dtype: str
    device: str
    max_model_len: int
    """min(model's limit, asked limit, tokens the pool can hold)."""
    pool_blocks: int
    block_size: int
    bytes_per_block: int
    kv_quota_blocks: dict[str, int | None] = {}
    """Of the tenants that are named in the configuration."""
    default_kv_quota_blocks: int | None = None

    def kv_quota_of(self, tenant: str) -> int | None:
        """Blocks that the tenant may hold; None without a bound, as for the engine itself, the nameless tenant."""
        if not tenant:
            return None
        return self.kv_quota_blocks.get(tenant, self.default_kv_quota_blocks)


class Ready(msgspec.Struct, frozen=True, tag=True):
    info: EngineInfo


class TokenLogprobs(msgspec.Struct, frozen=True):
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """(token id, logprob), likeliest first."""


class TokenDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What one step added to one request."""

    request_id: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish: FinishReason | None = None
    stop_token_id: int | None = None
    """The sampled token that ended the request; it is generated, but not among `token_ids`."""
    cached_tokens: int = 0
    """Prompt tokens served from the prefix cache; set on the delta with the first token."""
    error: str = ""


class Started(msgspec.Struct, frozen=True, tag=True):
    """Requests that leave the waiting queue for the first time. Sent before their step computes, which may be long:
    what a request waited is then not mixed with what its prompt took."""

    request_ids: tuple[str, ...]


class StepDone(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    seconds: float
    deltas: tuple[TokenDelta, ...] = ()
    prefill_tokens: int = 0
    decode_tokens: int = 0
    out_of_memory: bool = False
    """The device had no memory for the step, and those of its batch ended."""


class EngineStats(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    at: float
    steps: int
    last_step_at: float | None
    running: int
    waiting: int
    kv: KvUsage
    prefix_cache: PrefixCache
    memory: MemoryLedger
    requests: tuple[RequestRow, ...]
    tenant_blocks: dict[str, int]
    invariant_violations: int


class KvMapReply(msgspec.Struct, frozen=True, tag=True):
    query_id: int
    map: KvMap


class Flushed(msgspec.Struct, frozen=True, tag=True):
    query_id: int
    blocks: int


class Fatal(msgspec.Struct, frozen=True, tag=True):
    """The engine's last word. `code` and `hint` are those of the error tree."""

    code: str
    message: str
    hint: str = ""


FromEngine = Loading | Ready | Started | StepDone | EngineStats | KvMapReply | Flushed | Fatal

_ENCODER = msgspec.msgpack.Encoder()
TO_ENGINE = msgspec.msgpack.Decoder(ToEngine)
FROM_ENGINE = msgspec.msgpack.Decoder(FromEngine)


def frame(message: ToEngine | FromEngine) -> bytes:
    """Length prefix and body. Raises ValueError over MAX_FRAME bytes."""
    body = _ENCODER.encode(message)
    if len(body) > MAX_FRAME:
        raise ValueError(f"a frame of {len(body)} bytes is over the bound of {MAX_FRAME}")
    return len(body).to_bytes(4, "little") + body


class FrameBuffer:
    """Cuts a byte stream into frame bodies."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The bodies completed by `data`. Raises ValueError on a length over MAX_FRAME."""
        self._buffer += data
        bodies = []
        while len(self._buffer) >= 4:
            size = int.from_bytes(self._buffer[:4], "little")
            if size > MAX_FRAME:
                raise ValueError(f"a frame of {size} bytes is over the bound of {MAX_FRAME}")
            if len(self._buffer) < 4 + size:
                break
            bodies.append(bytes(self._buffer[4 : 4 + size]))
            del self._buffer[: 4 + size]
        return bodies


def send(sock: socket.socket, message: ToEngine | FromEngine) -> None:
    sock.sendall(frame(message))

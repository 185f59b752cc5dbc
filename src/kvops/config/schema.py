"""Every setting of a node, with its bounds. A key that is not here is an error; a setting here does something."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    IPvAnyNetwork,
    model_validator,
)

from kvops.batching import most_running
from kvops.config.kinds import FilePath, OneHost, Text
from kvops.units import parse_duration, parse_size

Seconds = Annotated[
    float, BeforeValidator(parse_duration), Field(json_schema_extra={"format": "duration"})
]
Bytes = Annotated[int, BeforeValidator(parse_size), Field(json_schema_extra={"format": "size"})]
Port = Annotated[int, Field(ge=0, le=65535)]
OverLength = Literal["reject", "truncate_head", "truncate_middle", "truncate_tail"]
PriorityClass = Literal["online", "normal", "batch"]
Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}$")]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Tls(Section):
    """Both or neither; read again when they change."""

    cert: FilePath | None = None
    """PEM: the certificate, then those that lead to its root."""
    key: FilePath | None = None
    """PEM, without a password, not readable by everyone."""

    @model_validator(mode="after")
    def _both(self) -> Self:
        if (self.cert is None) != (self.key is None):
            raise ValueError("TLS needs a cert and a key")
        return self


class Server(Section):
    host: Text = "127.0.0.1"
    """Address of the data plane. Any but a loopback address asks for API keys."""
    port: Port = 8000
    """0 picks a free port."""
    control_host: OneHost = "127.0.0.1"
    """One address: a request must name it. Off loopback its token goes over the network in clear text."""
    control_port: Port = 8001
    api_keys_file: FilePath | None = None
    """YAML list of `{id, tenant, sha256}` (`kvops keys`); the keys themselves are nowhere on disk."""
    allow_networks: Annotated[tuple[IPvAnyNetwork, ...], Field(max_length=256)] = ()
    """Only clients of these networks may connect to the data plane; empty: any. By the address of the connection,
    whatever a header says."""
    tls: Tls = Tls()
    """HTTPS on the data plane."""


class Model(Section):
    name: Text = "smollm2-135m"
    """Name of a pulled model, or a path to a folder or .gguf file."""
    version: (
        Annotated[
            str,
            Field(
                pattern=r"^[0-9a-f]{7,64}$",
                description="the revision that `kvops model list` shows, in quotes: 7 to 64 hex digits",
            ),
        ]
        | None
    ) = None
    """The revision that it must have, so that no start serves other weights. Default: whatever is there."""
    weights_dtype: Literal["auto", "float32", "bfloat16", "int8"] = "auto"
    """float32 is exact; int8 (on CPUs with AVX2) is 4 times smaller and about as much faster."""
    max_context_length: Annotated[int, Field(ge=16, le=1_048_576)] | None = None
    """Prompt + output tokens of one request; by default what the model was trained for."""


class KvCache(Section):
    memory_fraction: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of what weights and the working memory of a step leave free."""
    bytes: Annotated[Bytes, Field(gt=0)] | None = None
    blocks: Annotated[int, Field(ge=2, le=2**24)] | None = None
    """One of blocks, bytes, memory_fraction. Default: bytes 1GiB on a CPU, memory_fraction 0.85 on a GPU."""
    block_size: Literal[8, 16, 32, 64] = 16
    dtype: Literal["auto", "float32", "bfloat16", "int8", "fp8"] = "auto"
    """float32 is exact; bfloat16 holds twice the tokens, int8 3.7 times, fp8 (on GPUs) 4 times. `auto` follows the
    weights."""
    prefix_caching: bool = True
    watermark: Annotated[float, Field(ge=0, le=0.5)] = 0.01
    """Share of the pool that admission leaves free for running requests to grow into."""
    shared_prefixes: tuple[FilePath, ...] = ()
    """Files whose tokens all tenants may share in the cache; computed before the node is ready."""


class BatchAdmission(Section):
    max_online_running: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Batch-class requests start only while fewer requests of the other classes run or wait. Default: half of
    max_batch_size."""


class ResultStore(Section):
    """Answers to requests that can have no other answer. Bounds are a tenant's."""

    entries: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """0: off."""
    bytes: Annotated[Bytes, Field(ge=1024, le=2**40)] = 16 * 2**20
    ttl: Annotated[Seconds, Field(gt=0, le=30 * 86400)] = 300.0


class Runtime(Section):
    device: Annotated[
        str,
        Field(
            pattern=r"^(auto|cpu|cuda(:\d{1,3})?)$",
            description="auto, cpu, cuda or cuda:N for GPU N",
        ),
    ] = "auto"
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Compute threads; by default one a core."""
    max_batch_size: Annotated[int, Field(ge=1, le=1024)] = 32
    """Requests that run at once; fewer where max_batched_tokens is less than twice as much."""
    max_concurrent_requests: Annotated[int, Field(ge=1, le=200_000)] | None = None
    """Requests that may be in the node, running and waiting, of all classes together; one more gets 429 queue_full.
    Default: no bound beside max_batch_size and max_queue."""
    max_batched_tokens: Annotated[int, Field(ge=16, le=65536)] = 512
    """Tokens in one step."""
    max_prefill_tokens: Annotated[int, Field(ge=1, le=65536)] | None = None
    """Prompt tokens in one step while others wait for their next token. Default: so many that a step lasts about
    twice one without a prompt, measured as the node runs."""
    batch_window: Annotated[Seconds, Field(ge=0, le=10)] = 0.0
    """How long an idle engine waits after a first arrival for more to share its step."""
    batch_admission: BatchAdmission = BatchAdmission()
    result_store: ResultStore = ResultStore()
    max_queue: Annotated[int, Field(ge=0, le=100_000)] = 64
    """Requests that may wait; one more gets 429 queue_full."""
    queue_timeout: Annotated[Seconds, Field(gt=0, le=86400)] = 30.0
    request_timeout: Annotated[Seconds, Field(gt=0, le=86400)] = 600.0
    over_length: OverLength = "reject"
    drain_timeout: Annotated[Seconds, Field(ge=0, le=86400)] = 30.0
    """How long a stopping node waits for requests in flight."""
    stall_after: Annotated[Seconds, Field(gt=0, le=3600)] = 30.0
    """Work pending and no step finished, or no sign of life, for so long: /livez says 503; 1 s later, a new engine."""
    load_stall_after: Annotated[Seconds, Field(gt=0, le=86400)] = 600.0
    """An engine that loads and reads no tensor, and finishes no step of its warm-up, for so long is hung, too."""

    @property
    def max_running(self) -> int:
        """Requests that do run at once."""
        return most_running(self.max_batch_size, self.max_batched_tokens)


class Restart(Section):
    """How a dead engine is replaced."""

    budget: Annotated[int, Field(ge=0, le=1000)] = 5
    """Restarts within `window`; one more, and the node exits with 1."""
    window: Annotated[Seconds, Field(gt=0, le=30 * 86400)] = 600.0
    backoff: Annotated[Seconds, Field(ge=0, le=3600)] = 0.5
    """Pause before the first restart within the window; each further one takes twice as long."""
    backoff_max: Annotated[Seconds, Field(ge=0, le=3600)] = 30.0


class Quarantine(Section):
    """Requests of a shape (tenant, lengths, parameters) that was in flight when engines died are refused."""

    crashes: Annotated[int, Field(ge=2, le=1000)] = 2
    """So many, with no other shape in as many."""
    window: Annotated[Seconds, Field(gt=0, le=30 * 86400)] = 3600.0
    """A crash counts for so long."""
    ttl: Annotated[Seconds, Field(gt=0, le=365 * 86400)] = 86400.0
    """So long a shape is refused, unless an operator clears it."""


class Limits(Section):
    body_bytes: Annotated[Bytes, Field(ge=1024, le=2**30)] = 4 * 2**20
    body_timeout: Annotated[Seconds, Field(gt=0, le=3600)] = 15.0
    json_depth: Annotated[int, Field(ge=4, le=512)] = 64
    messages: Annotated[int, Field(ge=1, le=65536)] = 1024
    stop_strings: Annotated[int, Field(ge=0, le=64)] = 4
    n: Annotated[int, Field(ge=1, le=128)] = 16
    logprobs: Annotated[int, Field(ge=0, le=100)] = 20


def _parse_quota(value: Any) -> Any:
    """`400` blocks, `25%` or `0.25` of the pool, `256MiB`; or a mapping that names one of them."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return value
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if isinstance(value, int):
        return {"blocks": value}
    if isinstance(value, float):
        return {"ratio": value}
    share = value.removesuffix("%")
    if share != value and share.strip().replace(".", "", 1).isdecimal():
        return {"ratio": float(share) / 100}
    return {"bytes": parse_size(value)}


class KvQuota(Section):
    """The first that is set decides."""

    blocks: Annotated[int, Field(ge=1, le=2**24)] | None = None
    bytes: Annotated[Bytes, Field(gt=0)] | None = None
    ratio: Annotated[float, Field(gt=0, le=1)] | None = None
    """Of the pool."""


class Tenant(Section):
    """What the requests of one tenant may take, all of its keys together. No value: no bound of its own."""

    priority: PriorityClass | None = Field(default=None, alias="class")
    """The class of its requests, and the best that they may ask for. Default: normal, and free to ask."""
    max_running: Annotated[int, Field(ge=1, le=100_000)] | None = None
    max_waiting: Annotated[int, Field(ge=0, le=100_000)] | None = None
    kv_quota: Annotated[KvQuota, BeforeValidator(_parse_quota)] | None = None
    """Blocks that its running requests hold together; one that they share counts once."""


class Warmup(Section):
    prefixes: dict[Name, tuple[FilePath, ...]] = {}
    """By tenant: files whose tokens are in its prefix cache before the node is ready. Text, or a chat as a JSON
    list of messages (.json)."""


class Logging(Section):
    """The node's own log and what its engine process writes."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Of kvops. Libraries are heard from `warning` on, without the values that they speak of."""
    max_bytes: Annotated[Bytes, Field(ge=2**16, le=2**30)] = 10 * 2**20
    """A file that would grow past it is put aside."""
    total_bytes: Annotated[Bytes, Field(ge=2**18, le=2**40)] = 64 * 2**20
    """Of all log files of the node together, at least 4 times max_bytes; the oldest put aside go first."""

    @model_validator(mode="after")
    def _room_for_old_ones(self) -> Self:
        if self.total_bytes < 4 * self.max_bytes:
            raise ValueError(f"total_bytes is under 4 × max_bytes, {4 * self.max_bytes}")
        return self


class Audit(Section):
    """A line for each decision on a request and each act of an operator, chained by hashes."""

    enabled: bool = True
    on_full: Literal["fail_open", "fail_closed"] = "fail_open"
    """While it cannot be written: serve, and count what is lost; or refuse requests with 503 audit_unavailable."""
    max_bytes: Annotated[Bytes, Field(ge=2**16, le=2**30)] = 64 * 2**20
    """Of one file."""
    keep: Annotated[int, Field(ge=2, le=10_000)] = 16
    """Files; the oldest goes first."""


class AlertChannel(Section):
    """One receiver. Its URL is a secret: it is read from a file or the environment, and is in no setting."""

    kind: Literal["webhook", "apprise"] = "webhook"
    """webhook: what Alertmanager posts (version 4). apprise: any service that apprise knows."""
    url_file: FilePath | None = None
    """Holds the URL on one line, 0600. Default: KVOPS_ALERT_URL_<NAME>, or the file in KVOPS_ALERT_URL_<NAME>_FILE."""
    timeout: Annotated[Seconds, Field(gt=0, le=120)] = 10.0
    """Of one attempt."""


class Alerts(Section):
    enabled: bool = True
    interval: Annotated[Seconds, Field(ge=0.5, le=300)] = 2.0
    """Between two looks at the node."""
    repeat: Annotated[Seconds, Field(ge=60, le=30 * 86400)] = 4 * 3600.0
    """How often a receiver is told again of an alert that goes on and that nobody acknowledged."""
    give_up_after: Annotated[Seconds, Field(ge=60, le=30 * 86400)] = 86400.0
    """A message that no attempt could deliver for so long is dropped, and counted as failed."""
    rules_file: FilePath | None = None
    """YAML list of rules. One of the same name as a built-in rule takes its place."""
    rules: Annotated[tuple[dict[str, Any], ...], Field(max_length=200)] = ()
    """The same, here; stronger than those of the file."""
    disabled: tuple[str, ...] = ()
    """Names of rules that are left out."""
    channels: Annotated[dict[Name, AlertChannel], Field(max_length=16)] = {}


class NodeConfig(Section):
    name: Annotated[
        str,
        Field(
            pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$",
            description="lower-case letters, digits, . _ - (at most 63, a letter or digit first)",
        ),
    ] = "node"
    engine: Literal["builtin"] = "builtin"
    """Who computes: the node's own engine."""
    server: Server = Server()
    model: Model = Model()
    kv_cache: KvCache = KvCache()
    runtime: Runtime = Runtime()
    tenants: dict[Name, Tenant] = {}
    tenant_defaults: Tenant = Tenant()
    """For each tenant that is not in `tenants`."""
    warmup: Warmup = Warmup()
    restart: Restart = Restart()
    quarantine: Quarantine = Quarantine()
    limits: Limits = Limits()
    alerts: Alerts = Alerts()
    logging: Logging = Logging()
    audit: Audit = Audit()

    def tenant(self, name: str) -> Tenant:
        return self.tenants.get(name, self.tenant_defaults)

"""One JSON line per request: the only source of every number of a load run. Text of prompts is never in it."""

from __future__ import annotations

import enum
import errno
import os
from array import array
from pathlib import Path
from types import TracebackType
from typing import Generic, TypeVar

import msgspec

REQUESTS_FILE = "requests.jsonl"
CLIENT_FILE = "client.jsonl"
SERVER_FILE = "server.jsonl"


class ErrorClass(enum.StrEnum):
    """Why a request failed. A closed list, so that runs can be counted and compared."""

    CONNECT_REFUSED = "connect_refused"
    CONNECT_TIMEOUT = "connect_timeout"
    CONNECTION_RESET = "connection_reset"
    CONNECT_FAILED = "connect_failed"
    """No connection for another reason: the name is unknown, there is no route."""
    TLS = "tls"
    HTTP_400_CONTEXT_LENGTH = "http_400_context_length"
    HTTP_400_OTHER = "http_400_other"
    HTTP_401_403 = "http_401_403"
    HTTP_404_MODEL = "http_404_model"
    HTTP_404_OTHER = "http_404_other"
    HTTP_408 = "http_408"
    HTTP_413 = "http_413"
    HTTP_429_QUEUE_FULL = "http_429_queue_full"
    HTTP_429_TENANT_LIMIT = "http_429_tenant_limit"
    HTTP_429_KV_QUOTA = "http_429_kv_quota"
    HTTP_429 = "http_429"
    """With any other code, or none."""
    HTTP_4XX_OTHER = "http_4xx_other"
    HTTP_503_QUEUE_TIMEOUT = "http_503_queue_timeout"
    HTTP_503_NOT_READY = "http_503_not_ready"
    HTTP_503_DRAINING = "http_503_draining"
    HTTP_503_ENGINE_RESTARTED = "http_503_engine_restarted"
    HTTP_503 = "http_503"
    """With any other code, or none."""
    HTTP_504 = "http_504"
    HTTP_5XX_OTHER = "http_5xx_other"
    STREAM_ERROR_EVENT = "stream_error_event"
    STREAM_TRUNCATED = "stream_truncated"
    FIRST_TOKEN_TIMEOUT = "first_token_timeout"
    STALL_TIMEOUT = "stall_timeout"
    TOTAL_TIMEOUT = "total_timeout"
    BAD_ANSWER = "bad_answer"
    """Not HTTP, a status that is neither 200 nor an error, not JSON, nonsense in it, or over the client's bounds."""
    NOT_A_STREAM = "not_a_stream"
    """A stream was asked for, and the whole answer came at once: there is no first token to time."""
    EMPTY_OUTPUT = "empty_output"
    WRONG_ANSWER = "wrong_answer"
    WRONG_STATUS = "wrong_status"
    LENGTH_MISMATCH = "length_mismatch"
    NODE_DOWN = "node_down"
    """The request was answered as it should, and afterwards the node was not alive."""
    CLIENT_SATURATED = "client_saturated"
    """The client had no room: an open-loop request that was due then, or no descriptor or port. It was never sent."""
    CLIENT_CANCEL = "client_cancel"
    """The run ended while the request was in flight: neither a success nor the node's failure."""


class NeedleScore(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    found: bool
    length: int
    """Asked length of the prompt, tokens; `RequestRecord.prompt_tokens` is the real one."""
    depth: float | None
    """Asked depth, percent of the document; None in the negative control."""
    actual_depth: float | None = None
    needle_at: int | None = None
    """Tokens of the message before the needle, the template's own left out."""
    counted_tokens: int
    """Prompt tokens the scenario aimed at; by the node's tokenizer, or by an estimate."""
    exact: bool
    """Whether the node's own tokenizer counted."""
    repeat: int = 0


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Times are Unix seconds, durations seconds from the moment the request was written."""

    run: str
    scenario: str
    name: str
    seq: int
    user: int
    t_intended: float | None = None
    """When an open-loop schedule wanted it sent; None in a closed loop."""
    t_send: float
    connect: float | None = None
    ttft: float | None = None
    """To the first token: text, thinking or a piece of a tool call; a role or an empty delta is none."""
    first_content: float | None = None
    """To the first text of the answer itself: after `ttft` where thinking or a tool call came first; None: no text."""
    itl: tuple[float, ...] = ()
    """Gaps between deltas with tokens."""
    last: float | None = None
    """To the last delta with tokens."""
    e2e: float
    """To the close of the stream."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    truncated_tokens: int | None = None
    status: int | None = None
    finish_reason: str | None = None
    error_class: ErrorClass | None = None
    error: str | None = None
    """One line for a reader."""
    expected: bool
    """The answer is the one the scenario expects; an oversize prompt that is refused is a success."""
    needle: NeedleScore | None = None
    group: str = ""
    """What the request is an example of, for reports that compare: `whale`, `minnow`, a tenant, a phase."""
    asked_input: int | None = None
    """Prompt length that the scenario aimed at, tokens."""
    asked_output: int | None = None
    """`max_tokens` of the request."""
    counted_tokens: int | None = None
    """Tokens of the answer's text by the model's own tokenizer, where this machine has it and counting was cheap."""
    worker: int = 0
    """Which process of the load generator sent it."""

    @property
    def lateness(self) -> float | None:
        """Seconds between the wanted and the real send; None in a closed loop."""
        return None if self.t_intended is None else self.t_send - self.t_intended

    @property
    def waited(self) -> float:
        """Seconds from the wanted send until the request was written: the time to connect, and that of a late send."""
        if self.t_intended is None:
            return self.connect or 0.0
        return max(0.0, self.t_send - self.t_intended)

    @property
    def scheduled_ttft(self) -> float | None:
        """Seconds from the wanted send to the first token: what a user waits."""
        return None if self.ttft is None else self.ttft + self.waited

    @property
    def cancelled(self) -> bool:
        return self.error_class is ErrorClass.CLIENT_CANCEL

    @property
    def failed(self) -> bool:
        return not self.expected and not self.cancelled


class ClientSample(msgspec.Struct, frozen=True):
    """The load generator itself, about once a second: was the client the bottleneck?"""

    at: float
    users: int
    in_flight: int
    cpu: float
    """Share of one core, 0..1."""
    lag: float
    """Largest delay of a 50 ms timer since the sample before, seconds."""
    late: float = 0.0
    """Largest lateness of a scheduled send since the sample before, seconds; 0 in a closed loop."""
    worker: int = 0
    machine: float | None = None
    """Share of all CPUs of this machine that everything on it used, 0..1. None: another worker tells it."""
    ours: float | None = None
    """Of it the whole load generator, all its processes."""
    node: float | None = None
    """Of it the node's processes; None where the node is not one that kvops started on this machine."""

    @property
    def others(self) -> float | None:
        """Share that neither the load generator nor the node used; None where they cannot be told apart."""
        if self.machine is None or self.ours is None or self.node is None:
            return None
        return max(0.0, self.machine - self.ours - self.node)


class ServerSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The node as it was at a moment of the run, about once a second. None is not exposed; counters since start."""

    at: float
    """Unix seconds of the load generator's clock."""
    state: str = ""
    running: int | None = None
    waiting: int | None = None
    queue_oldest: float | None = None
    kv_total: int | None = None
    """Blocks."""
    kv_used: int | None = None
    kv_cached: int | None = None
    kv_usage: float | None = None
    """Share of the pool that running requests hold, 0..1."""
    memory_used: float | None = None
    """Share of the device's memory that is in use, 0..1."""
    preemptions: int | None = None
    evictions: int | None = None
    prompt_tokens: int | None = None
    generation_tokens: int | None = None
    prefix_query_tokens: int | None = None
    prefix_hit_tokens: int | None = None
    requests: int | None = None
    """Finished requests of all outcomes."""
    rejections: int | None = None
    steps: int | None = None
    engine_restarts: int | None = None


class JsonLines:
    """Appends one line a struct. Each line is handed to the system at once: a crash keeps all before it.

    A full disk leaves whole lines only.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def append(self, value: msgspec.Struct) -> None:
        """Raises OSError, and then nothing of the line is in the file."""
        self.append_lines(msgspec.json.encode(value) + b"\n")

    def append_lines(self, lines: bytes) -> None:
        """Whole lines. Raises OSError, and then nothing of them is in the file."""
        written = self._file.write(lines) or 0
        if written < len(lines):
            end = self._file.tell()
            # Another process may have appended since: then its line is worth more than a clean file.
            if end == os.fstat(self._file.fileno()).st_size:
                self._file.truncate(end - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._file.name)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> JsonLines:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


T = TypeVar("T", bound=msgspec.Struct)


def compact(value: T) -> T:
    """A tuple of floats takes four times the memory of an array, and gaps are most of a run."""
    if isinstance(value, RequestRecord) and value.itl:
        msgspec.structs.force_setattr(value, "itl", array("d", value.itl))
    return value


class Tail(Generic[T]):
    """The whole lines of a growing file since the last look; a line still being written waits."""

    def __init__(self, path: Path, kind: type[T]) -> None:
        self._path, self._decoder = path, msgspec.json.Decoder(kind)
        self._offset = 0

    def new(self) -> list[T]:
        """Without those that are not of the kind: what is lost of a file is told when the run is read back."""
        return [line for line in map(self._decoded, self._lines()) if line is not None]

    def _decoded(self, line: bytes) -> T | None:
        try:
            return compact(self._decoder.decode(line))
        except (msgspec.DecodeError, RecursionError):
            return None

    def _lines(self) -> list[bytes]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                whole, end, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return []
        self._offset += len(whole) + len(end)
        return whole.split(b"\n") if whole else []


def read_records(folder: Path) -> list[RequestRecord]:
    """All readable records of a run, in the order they ended."""
    return Tail(folder / REQUESTS_FILE, RequestRecord).new()


def read_client(folder: Path) -> list[ClientSample]:
    return Tail(folder / CLIENT_FILE, ClientSample).new()


def read_server(folder: Path) -> list[ServerSample]:
    return Tail(folder / SERVER_FILE, ServerSample).new()

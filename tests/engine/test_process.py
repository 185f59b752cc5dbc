"""The engine process over a real socketpair."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvops.node import wire
from tests.engine.driving import start, submit

DEADLINE = 60.0


class Daemon:
    """The other end: sends, and reads frames until one is of interest."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "kvops.node.engine.process", "--fd", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        self.socket.settimeout(DEADLINE)
        self.seen: list[wire.FromEngine] = []
        self._buffer = wire.FrameBuffer()
        self._unread: list[wire.FromEngine] = []

    def send(self, message: wire.ToEngine) -> None:
        wire.send(self.socket, message)

    def read(self) -> wire.FromEngine:
        while not self._unread:
            data = self.socket.recv(1 << 16)
            if not data:
                raise EOFError
            self._unread += [wire.FROM_ENGINE.decode(body) for body in self._buffer.feed(data)]
        self.seen.append(self._unread.pop(0))
        return self.seen[-1]

    def until(self, wanted: Callable[[wire.FromEngine], bool]) -> wire.FromEngine:
        deadline = time.monotonic() + DEADLINE
        while time.monotonic() < deadline:
            message = self.read()
            if wanted(message):
                return message
        raise AssertionError(f"not seen in {DEADLINE} s, last: {self.seen[-3:]}")

    def deltas(self, request_id: str) -> list[wire.TokenDelta]:
        """All deltas of a request up to its end."""
        found: list[wire.TokenDelta] = []
        while not found or found[-1].finish is None:
            message = self.read()
            if isinstance(message, wire.StepDone):
                found += [delta for delta in message.deltas if delta.request_id == request_id]
        return found


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    made = Daemon()
    yield made
    made.socket.close()
    made.process.kill()
    made.process.wait()


def idle(message: wire.FromEngine) -> bool:
    return isinstance(message, wire.EngineStats) and message.running == message.waiting == 0


def test_a_life(daemon: Daemon, tiny_model: Path) -> None:
    daemon.send(start(tiny_model))
    ready = daemon.until(lambda message: isinstance(message, wire.Ready))
    assert isinstance(ready, wire.Ready)
    assert (ready.info.pool_blocks, ready.info.max_model_len) == (256, 512)
    loading = [message for message in daemon.seen if isinstance(message, wire.Loading)]
    phases = [
        message.phase for message in loading if message.detail
    ]  # the rest says that it goes on
    assert phases == [
        "engine started",
        "model loaded",
        "pool initialised",
        "kernels compiled",
        "warm-up generation",
    ]

    daemon.send(submit("short", [1, 2, 3], max_tokens=5))
    tokens = [token for delta in daemon.deltas("short") for token in delta.token_ids]
    assert len(tokens) == 5
    stats = daemon.until(idle)
    assert isinstance(stats, wire.EngineStats)
    assert (stats.steps, stats.invariant_violations) == (5, 0)

    daemon.send(submit("long", [1, 2, 3], max_tokens=400))
    daemon.until(lambda message: isinstance(message, wire.StepDone))
    daemon.send(wire.Cancel("long"))
    assert daemon.deltas("long")[-1].finish == "cancelled"
    stats = daemon.until(idle)
    assert isinstance(stats, wire.EngineStats)
    assert stats.kv.used_blocks == 0

    daemon.send(wire.GetKvMap(7, 16))
    reply = daemon.until(lambda message: isinstance(message, wire.KvMapReply))
    assert isinstance(reply, wire.KvMapReply)
    assert (reply.query_id, len(reply.map.cells)) == (7, 16)
    daemon.send(wire.FlushPrefixCache(8))
    flushed = daemon.until(lambda message: isinstance(message, wire.Flushed))
    assert isinstance(flushed, wire.Flushed)
    assert flushed.blocks == stats.kv.cached_blocks

    first = daemon.until(idle)
    assert daemon.until(idle) != first, "an idle engine has a heartbeat"
    for number in (signal.SIGINT, signal.SIGTERM):
        daemon.process.send_signal(number)
    daemon.send(submit("after", [1], max_tokens=1))
    assert daemon.deltas("after")[-1].finish == "length"

    daemon.socket.close()
    assert daemon.process.wait(DEADLINE) == 0


def test_it_does_not_outlive_its_daemon(daemon: Daemon, tiny_model: Path) -> None:
    daemon.send(start(tiny_model))
    daemon.until(lambda message: isinstance(message, wire.Ready))
    daemon.send(submit("r", [1, 2, 3], max_tokens=500))
    daemon.socket.close()
    assert daemon.process.wait(DEADLINE) == 0


def test_stop(daemon: Daemon, tiny_model: Path) -> None:
    daemon.send(start(tiny_model))
    daemon.send(wire.Stop())
    assert daemon.process.wait(DEADLINE) == 0


def test_a_bad_model_path_is_its_last_word(daemon: Daemon, tmp_path: Path) -> None:
    daemon.send(start(tmp_path / "nothing"))
    fatal = daemon.until(lambda message: isinstance(message, wire.Fatal))
    assert isinstance(fatal, wire.Fatal)
    assert fatal.code == "model_not_found"
    assert "nothing" in fatal.message
    assert fatal.hint
    assert daemon.process.wait(DEADLINE) == 1


def test_nonsense_is_its_last_word(daemon: Daemon, tiny_model: Path) -> None:
    daemon.send(start(tiny_model))
    daemon.until(lambda message: isinstance(message, wire.Ready))
    daemon.send(start(tiny_model))
    fatal = daemon.until(lambda message: isinstance(message, wire.Fatal))
    assert isinstance(fatal, wire.Fatal)
    assert fatal.code == "engine_died"
    assert daemon.process.wait(DEADLINE) == 1

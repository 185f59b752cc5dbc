"""The engine process: frames in, steps, frames out, over one inherited socket. `python -m … --fd N`.

It ends when the daemon says so or is gone, and says why in a `Fatal` frame when it ends by itself. Signals that
a terminal sends to the whole group are the daemon's to act on, so they are ignored here.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from kvops import failpoints
from kvops.errors import KvopsError
from kvops.node import wire
from kvops.node.engine.cuda.faults import GpuFault, fault_of
from kvops.node.engine.reserve import Reserve
from kvops.node.secrecy import described, on_uncaught, trace_of

if TYPE_CHECKING:
    from kvops.node.engine.engine import Engine

_STATS_EVERY = 0.2
_HEARTBEAT = 1.0
_RECEIVE = 1 << 20
_log = logging.getLogger("kvops.engine")


class Connection:
    """The daemon's end is gone or it said stop: `Closed`."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._frames = wire.FrameBuffer()
        self.serving = False
        """Requests have come in, which the text of an exception may quote."""

    def send(self, message: wire.FromEngine) -> None:
        try:
            wire.send(self._sock, message)
        except OSError as error:
            raise Closed from error

    def receive(self, timeout: float) -> list[wire.ToEngine]:
        """What has come in; waits up to `timeout` seconds for the first byte."""
        if not select.select([self._sock], [], [], timeout)[0]:
            return []
        try:
            data = self._sock.recv(_RECEIVE)
        except OSError as error:
            raise Closed from error
        if not data:
            raise Closed
        return [wire.TO_ENGINE.decode(body) for body in self._frames.feed(data)]


class Closed(Exception):
    """There is nobody left to work for."""


class Service:
    """Serves one engine to one connection."""

    def __init__(self, engine: Engine, connection: Connection, batch_window: float) -> None:
        """`batch_window`: seconds."""
        self._engine = engine
        self._batch_window = batch_window
        self._connection = connection
        self._stats_at = 0.0
        self._idle = False

    def run(self) -> None:
        """Until `Closed`."""
        while True:
            busy = self._engine.has_work()
            self._report(busy)
            for message in self._connection.receive(0 if busy else _HEARTBEAT):
                self._handle(message)
            if self._engine.has_work():
                if not busy:
                    self._gather()
                self._step()

    def _gather(self) -> None:
        """Wait a moment after a first arrival, so that more of them share the first step."""
        until = time.monotonic() + self._batch_window
        while (left := until - time.monotonic()) > 0:
            for message in self._connection.receive(left):
                self._handle(message)

    def _step(self) -> None:
        done = self._engine.step(lambda ids: self._connection.send(wire.Started(ids)))
        if done.deltas or done.prefill_tokens:
            self._connection.send(done)

    def _report(self, busy: bool) -> None:
        """Stats a few times a second while there is work, at once on falling idle, then as a heartbeat."""
        fell_idle = not busy and not self._idle
        self._idle = not busy
        if fell_idle:
            for fault in self._engine.check():
                _log.error("block pool: %s", fault)
        due = self._stats_at + (_STATS_EVERY if busy else _HEARTBEAT)
        if fell_idle or time.monotonic() >= due:
            self._connection.send(self._engine.stats())
            self._stats_at = time.monotonic()

    def _handle(self, message: wire.ToEngine) -> None:
        match message:
            case wire.Submit():
                self._engine.add(message)
            case wire.Cancel():
                self._engine.cancel(message.request_id)
            case wire.GetKvMap():
                drawn = self._engine.kv_map(message.cells)
                self._connection.send(wire.KvMapReply(message.query_id, drawn))
            case wire.FlushPrefixCache():
                blocks = self._engine.flush_prefix_cache()
                self._connection.send(wire.Flushed(message.query_id, blocks))
            case wire.SetTenants():
                self._engine.set_tenants(message.tenants, message.default_tenant)
            case wire.Stop():
                raise Closed
            case wire.Start():
                raise ValueError("a second Start")


def serve(connection: Connection) -> None:
    """Start as told, then work until `Closed`."""
    start, early = _wait_for_start(connection)
    reserve = Reserve.of(start)
    # Threads that spin at a barrier for one that the system has put aside make a busy machine 10 times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")

    def report(phase: str, detail: str) -> None:
        connection.send(wire.Loading(phase, detail))

    report("engine started", "importing torch and the kernels")
    # Imported only now: OpenMP reads its policy once, and a broken torch is reported like any failure to load.
    from kvops.node.engine.engine import Engine

    engine = Engine.load(start, report, reserve)
    connection.send(wire.Ready(engine.info))
    connection.serving = True
    service = Service(engine, connection, start.batch_window)
    for message in early:
        service._handle(message)
    service.run()


def _wait_for_start(connection: Connection) -> tuple[wire.Start, list[wire.ToEngine]]:
    messages: list[wire.ToEngine] = []
    while not messages:
        messages = connection.receive(_HEARTBEAT)
    first, *early = messages
    if not isinstance(first, wire.Start):
        raise ValueError(f"the first message is {type(first).__name__}, not Start")
    return first, early


def main() -> int:
    parser = argparse.ArgumentParser(prog="kvops-engine")
    parser.add_argument("--fd", type=int, required=True, help="inherited socket to the daemon")
    connection = Connection(socket.socket(fileno=parser.parse_args().fd))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text("kvops-engine")
    on_uncaught(lambda error: _log.error("uncaught: %s", described(error)))
    try:
        failpoints.arm_from_environment()
        serve(connection)
    except Closed:
        return 0
    except Exception as error:
        fault = fault_of(error)
        _say_why(error, quoted=not connection.serving)
        with contextlib.suppress(Closed):
            connection.send(_last_word(error, fault, quoted=not connection.serving))
        if fault is not None and fault.sticky:
            os._exit(1)  # what frees GPU memory at exit might wait for a GPU that answers no more
        return 1
    return 0


def _say_why(error: Exception, *, quoted: bool) -> None:
    if quoted:
        _log.error("the engine ends", exc_info=error)
    else:
        _log.error("the engine ends: %s\n  %s", described(error), "\n  ".join(trace_of(error)))


def _last_word(error: Exception, fault: GpuFault | None, *, quoted: bool) -> wire.Fatal:
    if isinstance(error, KvopsError):
        return wire.Fatal(error.code, error.message, error.hint)
    if fault is not None:
        return wire.Fatal(fault.code, fault.message, fault.hint)
    words = f"{type(error).__name__}: {error}" if quoted else described(error)
    return wire.Fatal("engine_died", words)


if __name__ == "__main__":
    code = main()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(
        code
    )  # taking torch apart, object by object, would make every stop half a second longer

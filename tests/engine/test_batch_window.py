"""The batch window: requests that come shortly after the first share its step. Real frames, which come in one at a
time whenever the service looks for them, so that nothing depends on a clock."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from kvops.node import wire
from kvops.node.engine.engine import Engine
from kvops.node.engine.process import Closed, Connection, Service
from tests.engine.driving import load, submit

WINDOW = 1.0
FIRST, SECOND = submit("first", range(1, 8), max_tokens=3), submit("second", range(20, 31))


class Line(Connection):
    """One message, or none, comes in each time the service looks; `Stop` once the engine has nothing left to do."""

    def __init__(self, engine: Engine, messages: list[wire.ToEngine | None]) -> None:
        ours, self.far = socket.socketpair()
        super().__init__(ours)
        self._engine, self._messages = engine, messages
        self.waits: list[float] = []

    def receive(self, timeout: float) -> list[wire.ToEngine]:
        self.waits.append(timeout)
        message = self._messages.pop(0) if self._messages else self._last()
        if message is not None:
            wire.send(self.far, message)
        return super().receive(timeout)

    def _last(self) -> wire.ToEngine | None:
        return None if self._engine.has_work() else wire.Stop()

    def steps(self) -> list[wire.StepDone]:
        self.far.setblocking(False)
        frames, data = wire.FrameBuffer(), b""
        while True:
            try:
                data += self.far.recv(1 << 16)
            except BlockingIOError:
                break
        sent = [wire.FROM_ENGINE.decode(body) for body in frames.feed(data)]
        return [message for message in sent if isinstance(message, wire.StepDone)]


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Engine:
    return load(tiny_model, max_prefill_tokens=64)


def serve(engine: Engine, line: Line, window: float) -> list[wire.StepDone]:
    engine.flush_prefix_cache()
    with pytest.raises(Closed):
        Service(engine, line, window).run()
    assert not engine.has_work()
    return line.steps()


def test_within_the_window_two_share_the_first_step(engine: Engine) -> None:
    line = Line(engine, [FIRST, SECOND])
    first = serve(engine, line, WINDOW)[0]
    assert first.prefill_tokens == 7 + 11
    assert {delta.request_id for delta in first.deltas} == {"first", "second"}
    assert 0 < line.waits[1] <= WINDOW


def test_without_one_the_first_does_not_wait(engine: Engine) -> None:
    first, second, *_ = serve(engine, Line(engine, [FIRST, SECOND]), 0.0)
    assert (first.prefill_tokens, second.prefill_tokens) == (7, 11)
    assert (first.decode_tokens, second.decode_tokens) == (0, 1)


def test_who_comes_to_a_busy_engine_waits_for_no_window(engine: Engine) -> None:
    """It opens once, for the first arrival after an idle time."""
    line = Line(engine, [FIRST, None, SECOND])
    first, second, *_ = serve(engine, line, WINDOW / 4)
    assert (first.prefill_tokens, second.prefill_tokens) == (7, 11)
    idle, window, *busy, idle_again = line.waits
    assert min(idle, window, idle_again) > 0
    assert set(busy) == {0}

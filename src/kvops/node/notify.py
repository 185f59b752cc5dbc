"""What systemd is told of a node (sd_notify(3)): only where it asked to be, by NOTIFY_SOCKET.

WATCHDOG=1 follows from progress, never from a timer alone: a hung engine, or a daemon that is held up, says nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable, Mapping

import structlog

_SHORTEST_PAUSE = 0.05
_STEP_SECONDS = 600.0
"""What a step of a start may take: weights come from slow disks, too."""
_END_SECONDS = 30.0
"""What an end may take beyond the drain."""
_STATUS_CHARACTERS = 200
_MOST_OWED = 64
"""Messages kept for a systemd that has no room for them yet: Linux queues eleven for a socket."""
_TRY_AGAIN_SECONDS = 0.05

Report = Callable[[str, str], None]
"""Called with a step of the start-up and its detail."""

log = structlog.get_logger("kvops.notify")


class Notifier:
    """Says nothing where nobody listens; what cannot be said is logged once and stops nothing. What systemd has no
    room for is said a moment later, in order: without READY=1 it would end the node."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        # A name that begins with @ is in the abstract namespace, where the first byte is 0.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._watchdog = _watchdog_seconds(environment)
        self._is_ready = False
        self._failed = False
        self._owed: deque[bytes] = deque(maxlen=_MOST_OWED)
        self._again: asyncio.TimerHandle | None = None

    @classmethod
    def of_process(cls) -> Notifier:
        """The address leaves the environment: it is not for the engine, which inherits the rest."""
        notifier = cls(os.environ)
        for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
            os.environ.pop(name, None)
        return notifier

    def following(self, report: Report, drain_timeout: float) -> Report:
        """`report`, of which systemd hears too: each step of the start, that the node is ready, that it stops."""

        def both(step: str, detail: str) -> None:
            report(step, detail)
            self._follow(step, detail, drain_timeout)

        return both

    def _follow(self, step: str, detail: str, drain_timeout: float) -> None:
        status = f"STATUS={step}: {detail}"[:_STATUS_CHARACTERS]
        if step == "ready":
            self._is_ready = True
            self._say("READY=1", "STATUS=ready")
        elif step == "stopping":
            # However short the unit's TimeoutStopSec is.
            self._say("STOPPING=1", status, _extend(drain_timeout + _END_SECONDS))
        elif self._is_ready:
            self._say(status)
        else:
            self._say(status, _extend(_STEP_SECONDS))

    async def watch(self, healthy: Callable[[], bool]) -> None:
        """Say that the node is alive, twice within the time that systemd allows, as long as it is `healthy`."""
        while self._address and self._watchdog is not None:
            if healthy() and not self._owed:
                self._say("WATCHDOG=1")
            await asyncio.sleep(max(self._watchdog / 2, _SHORTEST_PAUSE))

    def _say(self, *lines: str) -> None:
        if self._address:
            self._owed.append("\n".join(line.replace("\n", " ") for line in lines).encode())
            self._settle()

    def _settle(self) -> None:
        if self._again is not None:
            self._again.cancel()
        while self._owed:
            try:
                self._send(self._owed[0])
            except BlockingIOError:
                loop = asyncio.get_running_loop()
                self._again = loop.call_later(_TRY_AGAIN_SECONDS, self._settle)
                return
            except OSError as error:
                if not self._failed:
                    log.warning("notify_failed", error=error.strerror)
                self._failed = True
            self._owed.popleft()

    def _send(self, message: bytes) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.setblocking(False)
            sock.sendto(message, self._address)


def _extend(seconds: float) -> str:
    return f"EXTEND_TIMEOUT_USEC={seconds * 1e6:.0f}"


def _watchdog_seconds(environment: Mapping[str, str]) -> float | None:
    """None where systemd watches nothing, or another process than this."""
    pid = environment.get("WATCHDOG_PID", str(os.getpid()))
    with contextlib.suppress(ValueError):
        seconds = int(environment.get("WATCHDOG_USEC", "0")) / 1e6
        if pid == str(os.getpid()) and seconds > 0:
            return seconds
    return None

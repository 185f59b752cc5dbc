"""One engine process and the socket to it. It is its own session (Ctrl-C is the daemon's) and dies with the daemon."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from kvops.errors import EngineDied
from kvops.node.wire import Stop, ToEngine, frame
from kvops.paths import make_private

_READ_SIZE = 1 << 18
_LOG_BOUND = 1 << 20
_END_SECONDS = 5.0
_PR_SET_PDEATHSIG = 1


class EngineChild:
    def __init__(self, log: Path) -> None:
        self.log = log
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def returncode(self) -> int | None:
        return self._process.returncode if self._process else None

    async def spawn(self) -> None:
        """Raises EngineDied if no process can be made."""
        ours, theirs = socket.socketpair()
        make_private(self.log.parent)
        if self.log.exists() and self.log.stat().st_size > _LOG_BOUND:
            self.log.unlink()
        command = [sys.executable, "-m", "kvops.node.engine.process", "--fd", str(theirs.fileno())]
        try:
            with self.log.open("ab") as output, theirs:
                self._process = await asyncio.create_subprocess_exec(
                    *command,
                    pass_fds=(theirs.fileno(),),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    preexec_fn=_die_with_parent(),
                )
        except OSError as error:
            ours.close()
            raise EngineDied(f"the engine process cannot be started: {error.strerror}") from None
        self._reader, self._writer = await asyncio.open_connection(sock=ours)

    def send(self, message: ToEngine) -> None:
        """Never blocks. What is sent to a dead engine is lost; its end of file tells the reader."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(frame(message))

    async def read(self) -> bytes:
        """Empty at the end of the process's life."""
        assert self._reader is not None
        try:
            return await self._reader.read(_READ_SIZE)
        except OSError:
            return b""

    async def wait(self) -> int:
        """The exit code; negative for a signal. The process is killed if it lingers after it closed its end."""
        assert self._process is not None
        try:
            return await asyncio.wait_for(self._process.wait(), _END_SECONDS)
        except TimeoutError:
            self.kill()
            return await self._process.wait()
        finally:
            if self._writer is not None:
                self._writer.close()

    async def end(self) -> None:
        """Ask, wait, kill."""
        if self._process is not None and self._process.returncode is None:
            self.send(Stop())
            await self.wait()

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    def last_words(self) -> str:
        """The last line the process wrote, or its exit code."""
        lines = (
            self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        )
        return lines[-1][:300] if lines else f"exit code {self.returncode}"


def _die_with_parent() -> Callable[[], object] | None:
    """Linux kills the child when the daemon dies, even where a hung engine would not see the end of file."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

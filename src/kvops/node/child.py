"""One engine process, the socket to it and what it writes. It is its own session (Ctrl-C is the daemon's) and dies
with the daemon. Its output goes through the daemon's log writer, which keeps it within bounds."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from pathlib import Path

from kvops.errors import EngineDied
from kvops.lifeline import dies_with_parent
from kvops.node import logs
from kvops.node.wire import Stop, ToEngine, frame

_READ_SIZE = 1 << 18
_LONGEST_LINE = 1 << 14
_END_SECONDS = 5.0
_LAST_WORDS_SECONDS = 1.0


class EngineChild:
    def __init__(self, log: Path) -> None:
        self.log = log
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._output = _Output(log)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def returncode(self) -> int | None:
        return self._process.returncode if self._process else None

    async def spawn(self) -> None:
        """Raises EngineDied if no process can be made."""
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "kvops.node.engine.process", "--fd", str(theirs.fileno())]
        said, saying = socket.socketpair()
        try:
            with saying, theirs:
                self._process = await asyncio.create_subprocess_exec(
                    *command,
                    pass_fds=(theirs.fileno(),),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=saying.fileno(),
                    stderr=saying.fileno(),
                    start_new_session=True,
                    # Also a hung engine, which would not see the end of file.
                    preexec_fn=dies_with_parent(signal.SIGKILL),
                )
        except OSError as error:
            ours.close()
            said.close()
            raise EngineDied(f"the engine process cannot be started: {error.strerror}") from None
        await self._output.follow(said)
        self._reader, self._writer = await asyncio.open_connection(sock=ours)

    def send(self, message: ToEngine) -> None:
        """Never blocks. What is sent to a dead engine is lost; its end of file tells the reader."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(frame(message))

    async def read(self) -> bytes:
        """Empty at the end of the process's life."""
        assert self._reader is not None
        return await _read(self._reader)

    async def wait(self) -> int:
        """The exit code; negative for a signal. The process is killed if it lingers after it closed its end."""
        assert self._process is not None
        try:
            async with asyncio.timeout(_END_SECONDS):
                return await self._process.wait()
        except TimeoutError:
            self.kill()
            return await self._process.wait()
        finally:
            await self._output.end(_LAST_WORDS_SECONDS)
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

    @property
    def spoke(self) -> bool:
        """Whether the process wrote anything since it was started."""
        return bool(self._output.last_line)

    def last_words(self) -> str:
        """The last line the process wrote, or its exit code."""
        return self._output.last_line[:300] or f"exit code {self.returncode}"


class _Output:
    """What the process writes, kept line by line."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._writer: asyncio.StreamWriter | None = None
        self._pump: asyncio.Task[None] | None = None
        self.last_line = ""

    async def follow(self, said: socket.socket) -> None:
        self.last_line = ""
        logs.keep(self._log, b"")  # who says nothing has an empty log, not none
        reader, self._writer = await asyncio.open_connection(sock=said)
        self._pump = asyncio.create_task(self._keep(reader))

    async def end(self, seconds: float) -> None:
        """Read what is left; who else inherited the process's output is not waited for."""
        if self._pump is not None:
            await asyncio.wait({self._pump}, timeout=seconds)
            self._pump.cancel()
        if self._writer is not None:
            self._writer.close()

    async def _keep(self, reader: asyncio.StreamReader) -> None:
        rest = b""
        while data := await _read(reader):
            lines, _, rest = (rest + data).rpartition(b"\n")
            if len(rest) > _LONGEST_LINE:
                lines, rest = lines + b"\n" + rest, b""
            self._add(lines)
        self._add(rest)

    def _add(self, lines: bytes) -> None:
        if lines.strip():
            self.last_line = lines.rstrip().rpartition(b"\n")[2].decode(errors="replace").strip()
            logs.keep(self._log, lines + b"\n")


async def _read(reader: asyncio.StreamReader) -> bytes:
    """Empty at the end, however it came."""
    try:
        return await reader.read(_READ_SIZE)
    except OSError:
        return b""

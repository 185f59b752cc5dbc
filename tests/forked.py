"""`kvops` commands, forked from a process that has done their imports (tests/zygote.py); one such process a worker."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

REPO = Path(__file__).parent.parent


def for_python(environment: Mapping[str, str]) -> dict[str, str]:
    """What of an environment is for Python itself, which reads it only when it starts."""
    return {name: value for name, value in environment.items() if name.startswith("PYTHON")}


_OURS = for_python(os.environ)


def can_fork(environment: Mapping[str, str]) -> bool:
    """Whether a forked process would be as one for which Python had been started with this environment."""
    return for_python(environment) == _OURS


class Process:
    """What of `subprocess.Popen` a test of a running command needs; `wait` raises TimeoutExpired."""

    def __init__(
        self, *args: str, environment: dict[str, str], out: int, err: int, own_session: bool = False
    ) -> None:
        """`out`, `err`: descriptors that its output goes to."""
        self.args = args
        self.returncode: int | None = None
        self._told = socket.socket(socket.AF_UNIX)
        self._told.connect(_zygote())
        asked = {
            "arguments": args,
            "environment": environment,
            "folder": str(Path.cwd()),
            "own_session": own_session,
        }
        with open(os.devnull) as nothing:
            streams = [nothing.fileno(), out, err]
            socket.send_fds(self._told, [json.dumps(asked).encode()], streams)
        self.pid = int(self._line())

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = int(self._line())
            self._told.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _line(self) -> bytes:
        said = b""
        while not said.endswith(b"\n"):
            part = self._told.recv(1)
            assert part, "the zygote has ended"
            said += part
        return said


def run(
    *args: str, environment: dict[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run`, with standard input empty and output captured as text."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = Process(*args, environment=environment, out=out.fileno(), err=err.fileno())
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read().decode().replace("\r\n", "\n"))
    return subprocess.CompletedProcess(args, code, *said)


@cache
def _zygote() -> str:
    """The path of its socket."""
    folder = tempfile.mkdtemp(prefix="kvops-tests-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = f"{folder}/zygote"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.zygote", path], cwd=REPO,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    atexit.register(process.communicate)  # which closes its standard input, and it ends
    assert process.stdout.readline() == b"ready\n"
    return path

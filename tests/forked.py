"""`kvops` commands, forked from a process that has done their imports (tests/zygote.py); one such process a worker."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

REPO = Path(__file__).parent.parent


def run(
    *args: str, environment: dict[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run`, with standard input empty and output captured as text."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with open(os.devnull) as nothing, socket.socket(socket.AF_UNIX) as connection:
            connection.connect(_zygote())
            asked = {"arguments": args, "environment": environment, "folder": str(Path.cwd())}
            streams = [nothing.fileno(), out.fileno(), err.fileno()]
            socket.send_fds(connection, [json.dumps(asked).encode()], streams)
            code = _wait(connection, args, timeout)
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read().decode().replace("\r\n", "\n"))
    return subprocess.CompletedProcess(args, code, *said)


def _wait(connection: socket.socket, args: tuple[str, ...], timeout: float) -> int:
    with connection.makefile() as told:
        pid = int(told.readline())
        connection.settimeout(timeout)
        try:
            return int(told.readline())
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(args, timeout) from None


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

"""The process that measures, seen from outside: it is given an assignment, and never outlives who reads from it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import IO

import msgspec

from kvops.errors import EngineDied, from_code
from kvops.models.sources import Progress
from kvops.node.evaluation import MESSAGE, Assignment, Doing, Measured
from kvops.node.wire import Fatal

_COMMAND = [sys.executable, "-m", "kvops.node.engine.evaluation"]


def measure(assignment: Assignment, progress: Progress) -> Iterator[Measured]:
    """Each combination as it is done. Raises EngineDied, or what the process gave as its reason."""
    # Threads that spin at a barrier for one that the system has put aside make a busy machine 10 times slower.
    environment = {"OMP_WAIT_POLICY": "passive"} | os.environ
    with tempfile.TemporaryFile() as words:
        process = subprocess.Popen(
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=words,
            env=environment,
        )
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            _give(process.stdin, assignment)
            yield from _told(process.stdout, progress)
            if process.wait():
                raise EngineDied(f"the evaluation ended: {_last_line(words, process.returncode)}")
        finally:
            process.kill()
            process.wait()


def _give(stdin: IO[bytes], assignment: Assignment) -> None:
    """And leave it open: the process ends when it closes."""
    with contextlib.suppress(BrokenPipeError):  # why it is gone, its exit code tells
        stdin.write(msgspec.json.encode(assignment) + b"\n")
        stdin.flush()


def _told(lines: IO[bytes], progress: Progress) -> Iterator[Measured]:
    what, done = "", 0
    for line in lines:
        match MESSAGE.decode(line):
            case Doing() as now:
                if now.what != what:
                    what, done = now.what, 0
                    progress.step(what, now.total)
                progress.advance(now.done - done)
                done = now.done
            case Measured() as measured:
                yield measured
            case Fatal(code, message, hint):
                raise from_code(code, message, hint) or EngineDied(message, hint=hint)


def _last_line(words: IO[bytes], code: int) -> str:
    words.seek(0)
    lines = words.read().decode(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else f"exit code {code}"

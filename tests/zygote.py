"""Forks `kvops` commands from one process that has done the imports: `python -m tests.zygote SOCKET`.

Each command is a process of its own, with its arguments, environment, working folder, output and exit code, as if
Python had been started for it, at a fraction of the cost. It ends when its standard input does.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import time
from pathlib import Path

# What most commands import once they are called. None of it may read the environment or start a thread.
IMPORTED = (
    "kvops.cli.main", "kvops.cli.node", "kvops.cli.progress", "kvops.config.history", "kvops.config.load",
    "kvops.models.pull", "kvops.models.store", "kvops.node.daemon", "kvops.registry", "kvops.telemetry.clients.kvops",
    "kvops.telemetry.targets", "kvops.verify.order", "httpx", "rich.console", "rich.table",
)  # fmt: skip
REQUEST_BYTES = 1 << 20


def main() -> None:
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # else each child copies every page while it looks for garbage
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a fork would lose the other threads"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen()
        os.write(sys.stdout.fileno(), b"ready\n")
        arguments = _serve(listener)
    sys.argv = ["kvops", *arguments]
    from kvops.cli.entry import run

    run()


def _serve(listener: socket.socket) -> list[str]:
    """Returns in the processes that it forks, each with its arguments."""
    running = selectors.DefaultSelector()
    running.register(listener, selectors.EVENT_READ)
    running.register(sys.stdin, selectors.EVENT_READ)
    while True:
        for key, _ in running.select():
            if key.fileobj is sys.stdin:
                os._exit(0)
            elif key.fileobj is listener:
                connection, _ = listener.accept()
                data, files, _, _ = socket.recv_fds(connection, REQUEST_BYTES, 3)
                asked = json.loads(data)
                pid = os.fork()
                if pid == 0:
                    _become(asked, files, running)
                    connection.close()
                    return list(asked["arguments"])
                for file in files:
                    os.close(file)
                connection.sendall(f"{pid}\n".encode())
                running.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, connection))
            else:
                _tell(key, running)


def _become(asked: dict[str, object], files: list[int], running: selectors.BaseSelector) -> None:
    """The environment, the folder and the standard streams are the caller's; nothing of the zygote stays open."""
    for key in running.get_map().values():
        if key.data is not None:
            os.close(key.fd)
            key.data[1].close()
    running.close()
    os.environ.clear()
    os.environ.update(asked["environment"])  # type: ignore[call-overload]
    time.tzset()
    os.chdir(str(asked["folder"]))
    if asked["own_session"]:
        os.setsid()
    for standard, file in enumerate(files):
        os.dup2(file, standard)
        os.close(file)


def _tell(key: selectors.SelectorKey, running: selectors.BaseSelector) -> None:
    pid, connection = key.data
    running.unregister(key.fileobj)
    os.close(key.fd)
    _, status = os.waitpid(pid, 0)
    with connection, contextlib.suppress(OSError):  # nobody may wait any more
        connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    main()

"""`kvops node start --detach`: the same command in a session of its own, its report shown until ready or failed."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from kvops import paths, registry
from kvops.errors import NodeStartError

if TYPE_CHECKING:
    from typing import BinaryIO

_OPTIONS = {
    "name": "--name",
    "model.name": "--model",
    "server.host": "--host",
    "server.port": "--port",
    "server.control_port": "--control-port",
}
_READY = re.compile(r" s  ready +\S")
"""The line of the report that says so; other steps may have the word in their names."""
_GRACE = 600.0


def start_detached(name: str, config: Path | None, overrides: Mapping[str, object]) -> None:
    """Returns when the node is ready. Raises NodeStartError after its report was shown."""
    folder = paths.make_private(registry.node_dir(name))
    record = registry.read(name)
    if record is not None and record.alive():
        raise NodeStartError(
            f"a node named {name!r} runs already", hint="kvops node stop, or choose another --name"
        )
    output = folder / "start.out"
    with output.open("wb") as written:
        output.chmod(0o600)
        process = subprocess.Popen(
            _command(config, overrides),
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    with output.open("rb") as shown:
        _follow(process, shown, output)


def _command(config: Path | None, overrides: Mapping[str, object]) -> list[str]:
    command = [sys.executable, "-m", "kvops.cli", "node", "start"]
    if config is not None:
        command += ["-c", str(config.resolve())]
    for key, value in overrides.items():
        if value is not None:
            command += [_OPTIONS[key], str(value)]
    return command


def _follow(process: subprocess.Popen[bytes], shown: BinaryIO, output: Path) -> None:
    deadline = time.monotonic() + _GRACE
    while time.monotonic() < deadline:
        ended = process.poll() is not None
        text = shown.read().decode(errors="replace")
        typer.echo(text, nl=False)
        if _READY.search(text):
            return
        if ended:
            raise NodeStartError(
                f"the node ended with exit code {process.returncode}", hint=f"read {output}"
            )
        time.sleep(0.05)
    process.terminate()
    raise NodeStartError(f"the node was not ready after {_GRACE:.0f} s", hint=f"read {output}")

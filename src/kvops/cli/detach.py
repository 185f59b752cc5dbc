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
from kvops.config.next_start import OPTIONS
from kvops.errors import NodeStartError
from kvops.node.preflight import runs_already

if TYPE_CHECKING:
    from typing import TextIO

_READY = re.compile(r" s  ready +\S")
"""The line of the report that says so; other steps may have the word in their names."""
_ERROR = "error ["
_GRACE = 600.0
_END_SECONDS = 15.0


def start_detached(name: str, config: Path | None, overrides: Mapping[str, object]) -> None:
    """Returns when the node is ready; Ctrl-C before that ends it.

    Raises typer.Exit with the node's own code after it said why it ended, NodeStartError when it did not say.
    """
    folder = paths.make_private(registry.node_dir(name))
    record = registry.read(name)
    if record is not None and record.alive():
        raise runs_already(name)
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
    with output.open(errors="replace") as shown:
        try:
            _follow(process, shown, output)
        except KeyboardInterrupt:
            _call_off(process, name)
            raise


def _command(config: Path | None, overrides: Mapping[str, object]) -> list[str]:
    command = [sys.executable, "-m", "kvops.cli", "node", "start"]
    if config is not None:
        command += ["-c", str(config.resolve())]
    for key, value in overrides.items():
        if value is not None:
            command += [OPTIONS[key], str(value)]
    return command


def _follow(process: subprocess.Popen[bytes], shown: TextIO, output: Path) -> None:
    deadline = time.monotonic() + _GRACE
    said_why = False
    while time.monotonic() < deadline:
        ended = process.poll() is not None
        for line in iter(shown.readline, ""):
            said_why = said_why or line.startswith(_ERROR)
            typer.echo(line, nl=False, err=said_why)
            if _READY.search(line):
                return
        if ended:
            raise _ended(process.returncode, said_why, output)
        time.sleep(0.05)
    process.terminate()
    raise NodeStartError(f"the node was not ready after {_GRACE:.0f} s", hint=f"read {output}")


def _ended(code: int, said_why: bool, output: Path) -> Exception:
    if said_why and code > 0:
        return typer.Exit(code)
    how = f"with exit code {code}" if code >= 0 else f"by signal {-code}"
    return NodeStartError(f"the node ended {how} before it was ready", hint=f"read {output}")


def _call_off(process: subprocess.Popen[bytes], name: str) -> None:
    """A node that nobody waits for any more must not come up unseen."""
    typer.echo(f"stopping {name}, which was still starting …", err=True)
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    typer.echo(f"{name} stopped", err=True)

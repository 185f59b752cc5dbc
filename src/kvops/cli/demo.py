"""`kvops demo`: pull, start, verify, look, stop. However it ends, no process and no folder stays behind."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

import typer

from kvops import paths
from kvops.errors import NodeStartError
from kvops.lifeline import dies_with_parent

MODEL, NAME = "smollm2-135m", "demo"
START_SECONDS = 120.0
STOP_SECONDS = 45.0
"""Longer than a node's own drain timeout."""
_KVOPS = [sys.executable, "-m", "kvops.cli"]
_NEXT = {
    f"node start --model {MODEL}": "a node of your own, in the foreground",
    "tui": "its console, in another terminal",
    "verify --profile smoke": "the gate you have just seen",
    "load run needle_recall": "recall over long prompts",
}


def demo(
    keep: bool = typer.Option(False, "--keep", help="Leave the state folder behind."),
) -> None:
    """See kvops at work: model, node, verdict, console. The exit code is that of `kvops verify`."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    _say(f"1/4 The model: {MODEL}, about 100 MB the first time")
    pulled = _run("model", "pull", MODEL)
    if pulled:
        raise typer.Exit(pulled)
    with _scratch_home(keep) as home, _node(home / "node.out") as url:
        verdict = _look(url)
    _say_next()
    raise typer.Exit(verdict)


def _look(url: str) -> int:
    """Verify the node, then show it; the exit code of verify."""
    _say(f"3/4 The gate: does the node at {url} do what it says?")
    verdict = _run("verify", "--node", NAME, "--profile", "smoke")
    if sys.stdin.isatty() and sys.stdout.isatty():
        _say("4/4 The console: q leaves it, and the node stops")
        _run("tui", NAME)
    else:
        _say("4/4 A snapshot (on a terminal you would see the console)")
        _run("snapshot", "--node", NAME)
    _say("Stopping the node")
    return verdict


@contextmanager
def _scratch_home(keep: bool) -> Iterator[Path]:
    """A KVOPS_HOME for this process and its children: the usual model store, caches and run results, all else new."""
    store, runs = paths.make_private(paths.data_dir()), paths.make_private(paths.runs_dir())
    home = Path(tempfile.mkdtemp(prefix="kvops-demo-"))
    (home / "data").symlink_to(store, target_is_directory=True)
    (home / "cache").symlink_to(paths.make_private(paths.cache_dir()), target_is_directory=True)
    (paths.make_private(home / "state") / "runs").symlink_to(runs, target_is_directory=True)
    for name in [name for name in os.environ if name.startswith("KVOPS_")]:
        del os.environ[name]  # settings and credentials of other nodes
    os.environ["KVOPS_HOME"] = str(home)
    try:
        yield home
    finally:
        if keep:
            _say(f"Kept: {home}")
        else:
            shutil.rmtree(home, ignore_errors=True)


@contextmanager
def _node(output: Path) -> Iterator[str]:
    """A node on free ports, ready, at the URL given; stopped on leaving.

    Raises NodeStartError with the end of its output when it does not come up.
    """
    _say("2/4 A node on free ports of this machine")
    command = [
        *_KVOPS,
        "node",
        "start",
        "--model",
        MODEL,
        "--name",
        NAME,
        "--port",
        "0",
        "--control-port",
        "0",
    ]
    with output.open("wb") as out:
        # A session of its own: Ctrl-C reaches this process alone, which then stops the node in order.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=dies_with_parent(signal.SIGTERM),
        )
        try:
            yield _ready_url(process, output)
        finally:
            _stop(process)


def _ready_url(process: subprocess.Popen[bytes], output: Path) -> str:
    from kvops import registry

    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        record = registry.read(NAME)
        if record is not None and _is_ready(record.url):
            typer.echo(_tail(output))
            return record.url
        time.sleep(0.1)
    ended = process.poll()
    what = (
        f"ended with {ended}" if ended is not None else f"is not ready after {START_SECONDS:.0f} s"
    )
    raise NodeStartError(
        f"the node {what}; it said:\n{_tail(output)}",
        hint=f"{_command()} node start --model {MODEL} shows more",
    )


def _is_ready(url: str) -> bool:
    import httpx

    try:
        return httpx.get(f"{url}/readyz", timeout=2, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def _tail(output: Path, lines: int = 15) -> str:
    said = output.read_text(errors="replace").splitlines()
    return "\n".join(f"    {line}" for line in said[-lines:])


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Whatever comes meanwhile, see the node off: SIGTERM, then SIGKILL for its whole session."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _run(*args: str) -> int:
    """Run another kvops command on this terminal; it does not outlive this process."""
    child = subprocess.Popen([*_KVOPS, *args], preexec_fn=dies_with_parent(signal.SIGTERM))
    try:
        return child.wait()
    except BaseException:
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        raise


def _say_next() -> None:
    kvops, width = _command(), max(map(len, _NEXT))
    typer.echo("\nTo go on:")
    for arguments, what in _NEXT.items():
        typer.echo(f"  {kvops} {arguments:<{width}}  {what}")


def _command() -> str:
    """How this very kvops is called from here: by name where that finds it, else by path."""
    own = Path(sys.executable).with_name("kvops")
    found = shutil.which("kvops")
    if not own.exists() or (found and Path(found).resolve() == own.resolve()):
        return "kvops"
    here = Path.cwd()
    return shlex.quote(str(own.relative_to(here) if own.is_relative_to(here) else own))


def _end(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _say(text: str) -> None:
    typer.secho(f"\n{text}", bold=True)

"""`kvops node logs`: the last lines of a node's log, for a person or as they are; the node need not run."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

_LONGEST_LINE = 16_384
_POLL_SECONDS = 0.3


def logs(
    node: Annotated[
        str | None,
        typer.Option(
            "--node",
            metavar="NAME",
            help="Name of a node, running or not; default: the only one that runs here, else the last that ran.",
        ),
    ] = None,
    lines: Annotated[
        int,
        typer.Option("--lines", "-n", metavar="N", min=1, max=100_000, help="Last lines to show."),
    ] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines come.")] = False,
    engine: Annotated[
        bool, typer.Option("--engine", help="What the engine process wrote, in place of the log.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The lines as they are.")] = False,
) -> None:
    """The last lines of a node's log, times in UTC. It never holds prompts, completions or keys."""
    file = _log_of(node or _default_node(), "engine.log" if engine else "node.log")
    with file.open(errors="replace") as opened:
        for line in deque(opened, maxlen=lines):
            typer.echo(line.rstrip("\n") if as_json else _for_people(line))
        position = opened.tell()
    if position == 0 and not follow:
        typer.echo(f"{file.name} is empty", err=True)
    if follow:
        for line in _coming(file, position):
            typer.echo(line.rstrip("\n") if as_json else _for_people(line))


def _default_node() -> str:
    """The only one that runs, else the one that wrote last. Raises NodeNotFound, UsageError."""
    from kvops import registry

    known = _known()
    if registry.running() or not known:
        return registry.the_only_one().name
    last = max(known, key=lambda name: registry.log_file(name).stat().st_mtime)
    typer.echo(f"no node runs; the last that ran here is {last}", err=True)
    return last


def _known() -> list[str]:
    """Names of the nodes that have a log."""
    from kvops import paths

    return sorted(log.parent.name for log in paths.nodes_dir().glob("*/node.log"))


def _log_of(node: str, name: str) -> Path:
    from kvops import registry
    from kvops.errors import NodeNotFound

    file = registry.node_dir(node) / name
    if file.is_file():
        return file
    known = ", ".join(_known())
    if node in _known():
        raise NodeNotFound(
            f"the node {node!r} has no {name}", hint=f"see kvops node logs --node {node}"
        )
    raise NodeNotFound(
        f"no node {node!r} has ever run here",
        hint=f"those that have: {known}" if known else "start one: kvops node start --detach",
    )


def _coming(file: Path, position: int) -> Iterator[str]:
    """Lines appended after `position`, for ever; a log that was rotated is read from its start."""
    while True:
        if file.stat().st_size < position:
            position = 0
        with file.open(errors="replace") as opened:
            opened.seek(position)
            while (line := opened.readline()).endswith("\n"):
                position = opened.tell()
                yield line
        time.sleep(_POLL_SECONDS)


def _for_people(line: str) -> str:
    """`2026-01-31 13:49:31Z INFO request tenant=default …`; a line that is no JSON object stays as it is."""
    try:
        fields = json.loads(line[:_LONGEST_LINE])
        stamp = str(fields.pop("timestamp", ""))[:19].replace("T", " ")
        level, event = str(fields.pop("level", "")).upper(), fields.pop("event", "")
    except (ValueError, AttributeError):
        return line.rstrip("\n")
    details = " ".join(f"{name}={value}" for name, value in fields.items() if value is not None)
    return f"{stamp and stamp + 'Z'} {level:<5} {event} {details}".strip()

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
        str | None, typer.Option("--node", help="Name of a node, running or not.")
    ] = None,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=1, max=100_000, help="Last lines to show.")
    ] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines come.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The lines as they are.")] = False,
) -> None:
    """The last lines of a node's log. It never holds prompts, completions or keys."""
    file = _log_of(node)
    with file.open(errors="replace") as opened:
        for line in deque(opened, maxlen=lines):
            typer.echo(line.rstrip("\n") if as_json else _for_people(line))
        position = opened.tell()
    if follow:
        for line in _coming(file, position):
            typer.echo(line.rstrip("\n") if as_json else _for_people(line))


def _log_of(node: str | None) -> Path:
    from kvops import registry
    from kvops.errors import NodeNotFound

    file = registry.log_file(registry.the_only_one().name if node is None else node)
    if not file.is_file():
        raise NodeNotFound(
            f"no node {node!r} has ever run here", hint="kvops node status lists those that run"
        )
    return file


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
    """`13:49:31 INFO request tenant=default …`; a line that is no JSON object stays as it is."""
    try:
        fields = json.loads(line[:_LONGEST_LINE])
        stamp = str(fields.pop("timestamp", ""))[11:19]
        level, event = str(fields.pop("level", "")).upper(), fields.pop("event", "")
    except (ValueError, AttributeError):
        return line.rstrip("\n")
    details = " ".join(f"{name}={value}" for name, value in fields.items() if value is not None)
    return f"{stamp} {level:<5} {event} {details}".rstrip()

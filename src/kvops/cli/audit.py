"""`kvops audit`: who asked a node for what, and whether the record of it is as it was written. No node need run."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from kvops.node.audit_verify import Verdict

app = typer.Typer(
    no_args_is_help=True, help="Who asked a node for what: read the record, and prove it whole."
)

NodeOption = Annotated[
    str | None,
    typer.Option(
        "--node",
        metavar="NAME",
        help="Name of a node, running or not; default: the only one that has an audit.",
    ),
]
_WHAT = ("what", "outcome", "code")
"""What says most of a record, in this order."""
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.callback()
def _group() -> None:
    pass


@app.command()
def tail(
    node: NodeOption = None,
    lines: Annotated[
        int,
        typer.Option("--lines", "-n", metavar="N", min=1, max=100_000, help="Last lines to show."),
    ] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="The lines as they are.")] = False,
) -> None:
    """The last records, times in UTC. They never hold prompts, completions or keys."""
    from kvops.node.audit_verify import lines_of

    last: deque[bytes] = deque(maxlen=lines)
    for file in _files(node):
        last.extend(line for line, _ in lines_of(file))
    for line in last:
        text = line.decode("utf-8", "replace")
        typer.echo(text if as_json else _for_people(text))


@app.command()
def verify(node: NodeOption = None, as_json: JsonOption = False) -> None:
    """Prove that no record was changed, left out or put in since it was written.

    Exit code 0: whole. 1: not, with the first line that is wrong. What a chain cannot show is that its end was cut
    off: keep the last hash elsewhere for that.
    """
    from kvops.errors import AuditBroken
    from kvops.node.audit_verify import verify as read_back

    folder = _files(node)[0].parent
    verdict = read_back(folder)
    if as_json:
        typer.echo(json.dumps({"node": folder.name, "whole": verdict.whole, **asdict(verdict)}))
        raise typer.Exit(0 if verdict.whole else 1)
    if verdict.fault is not None:
        fault = verdict.fault
        raise AuditBroken(f"{folder / fault.file}, line {fault.line}: {fault.why}")
    if not verdict.whole:
        raise AuditBroken(f"the audit in {folder} holds no record", hint="was it emptied?")
    _report(folder, verdict)


def _report(folder: Path, verdict: Verdict) -> None:
    typer.echo(
        f"{folder.name}: whole, {verdict.records} records in {verdict.files} files, "
        f"{verdict.first_seq} to {verdict.last_seq}"
    )
    gone, told = (verdict.first_seq or 1) > 1, verdict.kept_from is not None
    notes = (
        (gone and told, "older files are gone, as audit.keep says and the chain tells"),
        (
            gone and not told,
            "older files are gone, and no line tells why: they are from before the audit told of it",
        ),
        (verdict.lost, f"{verdict.lost} records could not be written, and the chain says so"),
        (verdict.held_back, f"{verdict.held_back} refusals of nobody known share a line"),
        (verdict.torn, f"{verdict.torn} lines were cut short by a crash, and marked"),
        (verdict.unfinished, "the last line is not finished"),
    )
    for applies, note in notes:
        if applies:
            typer.echo(f"  {note}")
    typer.echo(f"  last hash {verdict.last_hash}")


def _files(node: str | None) -> list[Path]:
    """Of the audit, oldest first; at least one. Raises NodeNotFound, UsageError."""
    from kvops import registry
    from kvops.errors import NodeNotFound
    from kvops.node.audit_chain import files_of

    name = node or _the_only_one()
    files = files_of(registry.audit_dir(name))
    if not files:
        known = ", ".join(registry.audited())
        raise NodeNotFound(
            f"the node {name!r} has no audit",
            hint=f"those that have: {known}" if known else "is audit.enabled?",
        )
    return files


def _the_only_one() -> str:
    from kvops import registry
    from kvops.errors import NodeNotFound, UsageError

    known = registry.audited()
    if not known:
        raise NodeNotFound(
            "no node of this machine has an audit", hint="start one: kvops node start --detach"
        )
    if len(known) > 1:
        raise UsageError(
            f"several nodes have an audit: {', '.join(known)}", hint="name one with --node"
        )
    return known[0]


def _for_people(line: str) -> str:
    """`2026-01-31 13:49:31Z refused queue_full tenant=a …`; a line that is no record stays as it is."""
    try:
        fields: dict[str, Any] = json.loads(line)
        stamp = str(fields.pop("ts", ""))[:19].replace("T", " ")
        event = fields.pop("event", "")
    except (ValueError, AttributeError):
        return line
    for chained in ("prev", "seq"):
        fields.pop(chained, None)
    what = next((fields.pop(name) for name in _WHAT if name in fields), "")
    details = [f"{name}={value}" for name, value in fields.items()]
    return " ".join([f"{stamp}Z {event:<8}", *filter(None, [what]), *details])

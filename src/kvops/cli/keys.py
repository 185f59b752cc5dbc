"""`kvops keys`: make, list, rotate and revoke the API keys of a node. A key is shown once; only its hash is kept."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from kvops.node.keys.changes import NewKey
    from kvops.node.keys.file import ApiKey
    from kvops.registry import NodeRecord

app = typer.Typer(
    no_args_is_help=True,
    help="The API keys of a node. A running node takes a change of its file over within a second.",
)

FileOption = Annotated[
    Path | None,
    typer.Option(
        "--file",
        metavar="FILE",
        help="The keys file. Default: the one that KVOPS_API_KEYS_FILE names, else that of the node that runs "
        "here (--node), else keys.yaml in the configuration folder.",
    ),
]
NodeOption = Annotated[
    str | None,
    typer.Option("--node", metavar="NAME", help="The node of this machine whose file is meant."),
]
LifetimeOption = Annotated[
    str | None, typer.Option("--expires", metavar="TIME", help="Lasts so long, such as 30d or 12h.")
]
IdOption = Annotated[
    str | None,
    typer.Option("--id", metavar="ID", help="Its name in files and logs; default: one is made."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def create(
    tenant: Annotated[
        str, typer.Option("--tenant", metavar="NAME", help="Whose requests it stands for.")
    ] = "default",
    key_id: IdOption = None,
    expires: LifetimeOption = None,
    file: FileOption = None,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a key and print it: alone on standard output, for the only time."""
    from kvops.node.keys import changes

    place = _place(file, node)
    new = changes.create(place, tenant, key_id, _lifetime(expires))
    _show(new, place, as_json)
    _warn_of_a_slip(tenant, place)


@app.command()
def rotate(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The key to replace.")],
    overlap: Annotated[
        str, typer.Option("--overlap", metavar="TIME", help="The old key is good for so long yet.")
    ] = "1h",
    new_id: IdOption = None,
    expires: Annotated[
        str | None,
        typer.Option(
            "--expires",
            metavar="TIME",
            help="The new key lasts so long; default: as long as the old one was made for.",
        ),
    ] = None,
    file: FileOption = None,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a new key of the same tenant; the old one ends after the overlap."""
    from kvops.node.keys import changes
    from kvops.node.keys.file import timestamp

    place, lifetime = _place(file, node), _lifetime(expires)
    new, old = changes.rotate(
        place, key_id, _duration("--overlap", overlap), new_id=new_id, lifetime=lifetime
    )
    _show(new, place, as_json)
    typer.echo(f"{old.id} ends at {timestamp(old.expires or 0.0)}", err=True)


@app.command()
def revoke(
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID...", show_default=False)] = None,
    expired: Annotated[
        bool, typer.Option("--expired", help="All that have expired, instead of ids.")
    ] = False,
    file: FileOption = None,
    node: NodeOption = None,
) -> None:
    """Remove keys. A node refuses them within a second; answers that are being sent go on."""
    from kvops.errors import UsageError
    from kvops.node.keys import changes

    if bool(ids) == expired:
        raise UsageError("name the ids of keys, or give --expired", hint="kvops keys list")
    place = _place(file, node)
    gone = changes.revoke_expired(place) if expired else changes.revoke(place, ids or ())
    for key in gone:
        typer.echo(f"revoked {key.id} of tenant {key.tenant}")
    if not gone:
        typer.echo("none has expired")
        return
    _say_who_reads(place)


@app.command("list")
def list_keys(
    file: FileOption = None, node: NodeOption = None, as_json: JsonOption = False
) -> None:
    """The keys of the file: id, tenant, times and state. Never the keys themselves."""
    from kvops.node.keys.file import read_keys

    place, now = _place(file, node), time.time()
    rows = [_row(key, now) for key in read_keys(place)]
    if as_json:
        typer.echo(json.dumps({"file": str(place), "keys": rows}, indent=2))
    else:
        _print_table(rows, place)


def _place(file: Path | None, node: str | None) -> Path:
    """Raises NodeNotFound, UsageError for a node that does not run or takes no keys from a file."""
    from kvops import registry
    from kvops.node.keys.file import default_file

    if file is not None:
        return file
    pointed = os.environ.get("KVOPS_API_KEYS_FILE")
    if node is None and pointed:
        return Path(pointed)
    running = registry.running() if node is None else [_record_of(node)]
    files = {record.api_keys_file for record in running if record.api_keys_file}
    if node is not None and not files:
        raise _no_file(node)
    if len(files) > 1:
        raise _several(sorted(files))
    return Path(files.pop()) if files else default_file()


def _record_of(name: str) -> Any:
    from kvops import registry
    from kvops.errors import NodeNotFound

    record = registry.read(name)
    if record is None or not record.alive():
        raise NodeNotFound(f"no node {name!r} runs on this machine", hint="name the file: --file")
    return record


def _no_file(node: str) -> Exception:
    from kvops.errors import UsageError

    return UsageError(
        f"the node {node!r} takes its keys from no file",
        hint="set server.api_keys_file and start it again, or name a file: --file",
    )


def _several(files: list[str]) -> Exception:
    from kvops.errors import UsageError

    return UsageError(
        f"the nodes that run here take their keys from {' and '.join(files)}",
        hint="name one with --node or --file",
    )


def _lifetime(text: str | None) -> float | None:
    return None if text is None else _duration("--expires", text)


def _duration(option: str, text: str) -> float:
    """Seconds. Raises UsageError; a key that lasts no time is a slip too."""
    from kvops.errors import UsageError
    from kvops.units import parse_duration

    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None
    if not 1 <= seconds <= 100 * 365 * 86400:
        raise UsageError(f"{option} {text} is not from 1s to 36500d")
    return seconds


def _show(new: NewKey, place: Path, as_json: bool) -> None:
    from kvops.node.keys.file import timestamp

    if as_json:
        typer.echo(json.dumps({"key": new.secret, "file": str(place)} | _row(new.key, time.time())))
        return
    ends = "never expires" if new.key.expires is None else f"expires {timestamp(new.key.expires)}"
    typer.echo(
        f"key {new.key.id} of tenant {new.key.tenant}, in {place}, {ends}; shown this once:",
        err=True,
    )
    typer.echo(new.secret)
    _say_who_reads(place)


def _say_who_reads(place: Path) -> None:
    """A key in a file that no node reads opens nothing."""
    readers = [record.name for record in _readers(place)]
    if readers:
        typer.echo(f"in force within a second at {', '.join(readers)}", err=True)
    else:
        needed = f"set server.api_keys_file: {place.absolute()}"
        typer.echo(f"no node that runs here reads it: {needed}", err=True)


def _readers(place: Path) -> list[NodeRecord]:
    from kvops import registry

    where = str(place.absolute())
    return [record for record in registry.running() if record.api_keys_file == where]


def _warn_of_a_slip(tenant: str, place: Path) -> None:
    """A tenant that no setting names is none to refuse: `tenant_defaults` is for it."""
    import difflib

    for record in _readers(place):
        known = _tenants_of(record)
        if known and tenant not in known:
            near = difflib.get_close_matches(tenant, known, 1)
            meant = f"; did you mean {near[0]}?" if near else f": {', '.join(known[:10])}"
            typer.echo(f"warning: {tenant} is not of the tenants of {record.name}{meant}", err=True)


def _tenants_of(record: NodeRecord) -> list[str]:
    """Those that its settings name; none for a node that does not answer."""
    from kvops.cli.local_node import call
    from kvops.errors import NodeError, RequestError

    try:
        return list(call(record, "GET", "/control/config")["config"]["tenants"])
    except (NodeError, RequestError):
        return []


def _row(key: ApiKey, now: float) -> dict[str, Any]:
    from kvops.node.keys.file import timestamp

    return {
        "id": key.id,
        "tenant": key.tenant,
        "state": "expired" if key.expired(now) else "active",
        "created": None if key.created is None else timestamp(key.created),
        "expires": None if key.expires is None else timestamp(key.expires),
    }


def _print_table(rows: list[dict[str, Any]], place: Path) -> None:
    from rich.table import Table
    from rich.text import Text

    from kvops.cli.output import report_console

    table = Table(title=f"keys of {place}", title_justify="left", box=None, pad_edge=False)
    for column in ("id", "tenant", "state", "created", "expires"):
        table.add_column(column)
    for row in rows:
        table.add_row(*(Text(str(value or "—")) for value in row.values()))
    report_console().print(table)

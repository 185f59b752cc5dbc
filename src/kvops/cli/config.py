"""`kvops config`: what settings are in force and why, what they were, put others in force, and go back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from kvops.cli.config_text import echo_changes, echo_outcome, echo_values, version_rows
from kvops.cli.local_node import NodeOption

app = typer.Typer(
    no_args_is_help=True, help="Settings of a node: show, check, compare, apply, go back."
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AnyNode = Annotated[
    str | None,
    typer.Option(
        "--node",
        metavar="NAME",
        help="Name of a node, running or not; default: the only one that runs here, else `node`.",
    ),
]
NoteOption = Annotated[
    str, typer.Option("--note", metavar="TEXT", help="Why, for the history; up to 200 characters.")
]


@app.callback()
def _group() -> None:
    pass


@app.command()
def show(
    node: NodeOption = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", help="YAML file; what a start would take."),
    ] = None,
    origin: Annotated[
        bool, typer.Option("--origin", help="Where each value came from as well.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Every setting: of the node that runs; with -c, or where none runs, of a start. Secrets are covered."""
    from kvops.errors import UsageError

    if node is not None and config is not None:
        raise UsageError("--node and -c name two different things", hint="leave one of them")
    told = _of_node(node) if config is None and _meant(node) else _of_start(config)
    if as_json:
        typer.echo(json.dumps(told, indent=2))
        return
    echo_values(told, origin=origin)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML file of settings.")],
    as_json: Json = False,
) -> None:
    """Whether a node could start with a file, as far as that can be told without starting: every fault at once."""
    from kvops.cli.node_check import report_checks
    from kvops.config.load import load_config
    from kvops.node.check import run_checks

    loaded = load_config(file)
    report_checks(run_checks(loaded.config), as_json)


@app.command()
def diff(
    before: Annotated[
        str, typer.Argument(metavar="A", help="A file, a version such as 3 or v3, or `running`.")
    ],
    after: Annotated[str, typer.Argument(metavar="B", help="As A.")],
    node: AnyNode = None,
    as_json: Json = False,
) -> None:
    """What two settings differ in, and whether that can change live. Exit code 0 also when they differ."""
    from kvops.cli.config_sources import settings_of
    from kvops.config.live import changes

    found = changes(settings_of(before, node), settings_of(after, node))
    if as_json:
        typer.echo(json.dumps([_row(change) for change in found], indent=2))
        return
    echo_changes([_row(change) for change in found])


@app.command()
def history(node: AnyNode = None, as_json: Json = False) -> None:
    """The versions of a node's settings: each that it started with or that was applied."""
    from kvops.cli.columns import print_table
    from kvops.cli.config_sources import name_of, restart_pending
    from kvops.config.history import History

    name = name_of(node)
    versions, pending = History.of(name).versions(), restart_pending(name)
    if as_json:
        current = versions[-1].id if versions else None
        rows = [
            {"current": one.id == current, "restart_pending": pending and one.id == current}
            | {field: getattr(one, field) for field in one.__struct_fields__}
            for one in reversed(versions)
        ]
        typer.echo(json.dumps(rows, indent=2))
        return
    if not versions:
        typer.echo(f"{name} has no versions yet: it was never started, and nothing was applied")
        return
    columns = ("version", "time (UTC)", "author", "hash", "state", "note")
    print_table(columns, version_rows(versions, pending=pending), expendable=("note", "hash"))


@app.command()
def apply(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML file of settings.")],
    node: NodeOption = None,
    note: NoteOption = "",
    as_json: Json = False,
) -> None:
    """Keep a file as a version, and put it in force in the node that runs as far as that goes without a restart."""
    from kvops.cli.config_sources import apply_to
    from kvops.config.load import check_document, read_document

    document = read_document(file)
    check_document(document, f"file {file}")
    name = node or document.get("name")
    echo_outcome(apply_to(name, document, note), as_json=as_json)


@app.command()
def rollback(
    version: Annotated[
        str | None,
        typer.Argument(
            metavar="[VERSION]", help="Such as 3 or v3; default: the last good one before this."
        ),
    ] = None,
    node: AnyNode = None,
    note: NoteOption = "",
    as_json: Json = False,
) -> None:
    """Go back to settings of before; again, and it goes one further back."""
    from kvops.cli.config_sources import number_of, roll_back

    number = None if version is None else number_of(version)
    echo_outcome(roll_back(node, number, note), as_json=as_json)


def _meant(node: str | None) -> bool:
    """Without a name, those that run."""
    from kvops import registry

    return node is not None or bool(registry.running())


def _of_node(node: str | None) -> dict[str, Any]:
    from kvops.cli.local_node import call, find

    return call(find(node), "GET", "/control/config")


def _of_start(file: Path | None) -> dict[str, Any]:
    from kvops.config.load import load_config
    from kvops.config.masking import masked

    loaded = load_config(file)
    return {
        "config": masked(loaded.config.model_dump(mode="json", by_alias=True)),
        "origins": loaded.origins,
        "config_hash": loaded.config_hash,
    }


def _row(change: Any) -> dict[str, Any]:
    from kvops.config.masking import masked

    return {
        "key": change.key,
        "before": masked(change.before),
        "after": masked(change.after),
        "live": change.live,
    }

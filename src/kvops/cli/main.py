"""`kvops`: the command groups, and the one place where an error becomes text and an exit code."""

from __future__ import annotations

import sys

import typer

from kvops import __version__
from kvops.errors import KvopsError

app = typer.Typer(
    name="kvops",
    help="Operate and load-test LLM inference nodes: start, watch, gate, stress.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kvops {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    pass


def _register() -> None:
    from kvops.cli import demo, load, model, node, snapshot, tui, verify

    app.add_typer(model.app, name="model")
    app.add_typer(node.app, name="node")
    app.add_typer(load.app, name="load")
    app.command("snapshot")(snapshot.snapshot)
    app.command("tui")(tui.tui)
    app.command("verify")(verify.verify)
    app.command("demo")(demo.demo)


_register()


def run() -> None:
    """Console script. Exit codes: 0 done, 1 failed, 2 usage or configuration, 4 no node reached, 130 interrupted."""
    try:
        app()
    except KvopsError as error:
        report(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(0)


def report(error: KvopsError) -> None:
    typer.echo(f"error [{error.code}]: {error.message}", err=True)
    if error.hint:
        typer.echo(f"  next: {error.hint}", err=True)

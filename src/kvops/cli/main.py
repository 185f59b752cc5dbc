"""`kvops`: the command groups, and the one place where an error becomes text and an exit code."""

from __future__ import annotations

import io
import os
import sys
from typing import Any, TextIO

import typer

from kvops import __version__, failpoints
from kvops.cli.outside import outside
from kvops.errors import KvopsError
from kvops.printable import printable

PIPE_CLOSED = 128 + 13
"""What a shell reports of a program that SIGPIPE ended; never 1, which says that something failed."""

app = typer.Typer(
    name="kvops",
    help="Operate and load-test LLM inference nodes: start, watch, gate, stress.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def version() -> None:
    """Print the version."""
    typer.echo(f"kvops {__version__}")


def _version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    pass


def _register() -> None:
    from kvops.cli import (
        alerts,
        audit,
        config,
        demo,
        keys,
        load,
        model,
        node,
        snapshot,
        tui,
        verify,
    )

    app.add_typer(model.app, name="model")
    app.add_typer(node.app, name="node")
    app.add_typer(config.app, name="config")
    app.add_typer(keys.app, name="keys")
    app.add_typer(audit.app, name="audit")
    app.add_typer(alerts.app, name="alerts")
    app.add_typer(load.app, name="load")
    app.command("snapshot")(snapshot.snapshot)
    app.command("tui")(tui.tui)
    app.add_typer(verify.app, name="verify")
    app.command("demo")(demo.demo)
    app.command("version")(version)


_register()


def run() -> None:
    """Console script. Exit codes: 0 done, 1 failed, 2 usage or configuration, 4 no node reached, 130 interrupted,

    141 nobody reads the output any more.
    """
    sys.stdout, sys.stderr = _guarded(sys.stdout), _guarded(sys.stderr)
    try:
        failpoints.arm_from_environment()
        app()
    except KvopsError as error:
        report(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except (OSError, ValueError, RecursionError, OverflowError) as error:
        known = outside(error)
        report(known)
        sys.exit(known.exit_code)
    finally:
        sys.stdout.flush()


class _Descriptor(io.FileIO):
    """A standard stream whose reader may leave: the process then ends with PIPE_CLOSED.

    Only here, and not by the signal, since that would end a node for each client that hangs up.
    """

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())  # for what is still buffered
            raise SystemExit(PIPE_CLOSED) from None


def _guarded(stream: TextIO) -> TextIO:
    """The same stream with the same encoding; one without a descriptor as it is."""
    try:
        descriptor = stream.fileno()
    except (AttributeError, OSError, ValueError):  # closed before we came, or not of the system
        return stream
    stream.flush()
    raw = _Descriptor(descriptor, "wb", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        stream.encoding,
        stream.errors,
        line_buffering=descriptor == 2 or raw.isatty(),
    )


def report(error: KvopsError) -> None:
    typer.echo(f"error [{error.code}]: {_clean(error.message)}", err=True)
    if error.hint:
        typer.echo(f"  next: {_clean(error.hint)}", err=True)


def _clean(text: str) -> str:
    """Some of it may be what a node or a file said."""
    return "\n".join(map(printable, text.split("\n")))

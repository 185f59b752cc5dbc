"""`kvops tui`: the live console."""

from __future__ import annotations

import sys

import typer

from kvops.cli.options import ApiKeyFile, FleetFile, TokenFile
from kvops.errors import UsageError


def tui(
    targets: list[str] = typer.Argument(
        None,
        metavar="[TARGET]...",
        help="Names, fleet names or URLs of nodes; default: all of --fleet, else all here.",
    ),
    fleet: FleetFile = None,
    rate: float = typer.Option(
        1.0, "--rate", min=0.5, max=60, help="Seconds between two polls of a node."
    ),
    ascii_only: bool = typer.Option(False, "--ascii", help="Draw with plain ASCII characters."),
    write: bool = typer.Option(
        False, "--write", help="Allow drain and resume; the default is read-only."
    ),
    api_key_file: ApiKeyFile = None,
    token_file: TokenFile = None,
    control_url: str = typer.Option(
        None, "--control-url", help="Control plane of the one URL given as target."
    ),
) -> None:
    """Watch nodes live: the fleet, and one node in full."""
    if not sys.stdin.isatty() or not sys.stdout.isatty():
        raise UsageError(
            "kvops tui needs a terminal", hint="kvops snapshot prints the same without one"
        )
    from kvops.tui.start import open_console

    open_console(
        targets or [],
        rate=rate,
        ascii_only=ascii_only,
        write=write,
        fleet_file=fleet,
        api_key_file=api_key_file,
        token_file=token_file,
        control_url=control_url,
    )

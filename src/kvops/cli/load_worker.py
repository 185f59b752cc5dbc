"""`kvops load worker`: sends a share of a run that `kvops load run --workers` directs from another machine."""

from __future__ import annotations

from typing import Annotated

import typer

from kvops.cli.load_signals import stopping
from kvops.cli.options import ApiKeyFile


def worker(
    scenario: Annotated[
        str, typer.Argument(metavar="SCENARIO", help="The one that the master runs.")
    ],
    master: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where kvops load run --workers listens.")
    ],
    processes: Annotated[
        int, typer.Option(metavar="N", min=1, max=64, help="Each counts as a worker of the master.")
    ] = 1,
    allow_remote: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST",
            help="A host other than this one that the master may have loaded; may be repeated.",
        ),
    ] = None,
    api_key_file: ApiKeyFile = None,
) -> None:
    """Take part in a run. What is sent, and where to, the master says; it also keeps the records."""
    from kvops.load import scenarios, workers
    from kvops.load.spread import Address
    from kvops.telemetry import targets

    chosen = scenarios.find(scenario)
    address = Address.parse(master, "--master")
    key = targets.api_key(api_key_file)
    with stopping() as stop:
        typer.echo(f"waiting for the master at {master}", err=True)
        outcome = workers.take_part(
            chosen, address, stop, processes=processes, api_key=key,
            allow_remote=tuple(allow_remote or ()),
        )  # fmt: skip
    typer.echo(outcome.words, err=True)
    raise typer.Exit(outcome.exit_code)

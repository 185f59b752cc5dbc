"""Options that several commands have: one wording and one type for each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Node = Annotated[
    str | None,
    typer.Option(
        "--node",
        metavar="NODE",
        help="Name, fleet name or URL of a node; default: the only one that runs here.",
    ),
]
FleetFile = Annotated[
    Path | None,
    typer.Option("--fleet", metavar="FILE", help="File that names nodes; default: fleet.yaml."),
]
ApiKeyFile = Annotated[
    Path | None,
    typer.Option("--api-key-file", metavar="FILE", help="File with a key of the data plane."),
]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", metavar="FILE", help="File with the admin token.")
]
ControlUrl = Annotated[
    str | None,
    typer.Option("--control-url", metavar="URL", help="Control plane, when --node is a URL."),
]
AllowRemote = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-remote",
        metavar="HOST",
        help="A host other than this one may be loaded; may be repeated.",
    ),
]

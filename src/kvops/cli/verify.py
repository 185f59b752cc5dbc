"""`kvops verify`: run a profile of checks against a node and exit with the verdict."""

from __future__ import annotations

from pathlib import Path

import typer


def verify(
    node: str | None = typer.Option(
        None, "--node", metavar="T", help="Node name or URL; default: the only local node."
    ),
    profile: str = typer.Option(
        "smoke", "--profile", metavar="P", help="A built-in profile or a .yaml file."
    ),
    only: list[str] = typer.Option(
        [], "--only", metavar="ID", help="Run only this check; may be repeated."
    ),
    skip: list[str] = typer.Option(
        [], "--skip", metavar="ID", help="Leave this check out; may be repeated."
    ),
    json_file: str | None = typer.Option(
        None, "--json", metavar="FILE", help="Write the result there; - for stdout."
    ),
    api_key_file: Path | None = typer.Option(
        None, "--api-key-file", metavar="FILE", help="Key of the data plane."
    ),
    token_file: Path | None = typer.Option(
        None, "--token-file", metavar="FILE", help="Token of the control plane."
    ),
    control_url: str | None = typer.Option(
        None, "--control-url", metavar="URL", help="Control plane, if T is a URL."
    ),
) -> None:
    """Check that a node does what it was promised to do.

    Exit codes: 0 all required checks passed, 1 one failed, 2 usage or configuration, 3 inconclusive,
    4 node unreachable, 130 interrupted.
    """
    from kvops.telemetry import targets
    from kvops.verify.command import gate, planned

    chosen, checks = planned(profile, only, skip)
    target = targets.resolve(
        node, api_key_file=api_key_file, token_file=token_file, control_url=control_url
    )
    raise typer.Exit(gate(target, chosen, checks, json_file))

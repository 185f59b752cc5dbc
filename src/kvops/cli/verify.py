"""`kvops verify`: run a profile of checks against a node and exit with the verdict."""

from __future__ import annotations

from pathlib import Path

import typer

from kvops.cli.output import report_console


def verify(
    node: str | None = typer.Option(
        None,
        "--node",
        metavar="NODE",
        help="Name or URL of a node; default: the only one that runs here.",
    ),
    profile: str = typer.Option(
        "smoke", "--profile", metavar="PROFILE", help="A built-in profile or a .yaml file."
    ),
    only: list[str] = typer.Option(
        [], "--only", metavar="CHECK", help="Run only this check; may be repeated."
    ),
    skip: list[str] = typer.Option(
        [], "--skip", metavar="CHECK", help="Leave this check out; may be repeated."
    ),
    json_file: str | None = typer.Option(
        None, "--json", metavar="FILE", help="Write the result there; - for stdout."
    ),
    api_key_file: Path | None = typer.Option(
        None, "--api-key-file", metavar="FILE", help="File with a key of the data plane."
    ),
    token_file: Path | None = typer.Option(
        None, "--token-file", metavar="FILE", help="File with the admin token."
    ),
    control_url: str | None = typer.Option(
        None, "--control-url", metavar="URL", help="Control plane, when --node is a URL."
    ),
) -> None:
    """Check that a node does what it was promised to do.

    Exit codes: 0 all required checks passed, 1 one failed, 2 usage or configuration, 3 inconclusive,
    4 node unreachable, 130 interrupted. With --only or --skip they speak of the checks that ran, and the
    verdict says "partial".
    """
    from kvops.telemetry import targets
    from kvops.verify.command import gate, planned, require_writable

    plan = planned(profile, only, skip)
    require_writable(json_file)
    target = targets.resolve(
        node, api_key_file=api_key_file, token_file=token_file, control_url=control_url
    )
    console = report_console(stderr=json_file == "-")
    raise typer.Exit(gate(target, plan, json_file, console))

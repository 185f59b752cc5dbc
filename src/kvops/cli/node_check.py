"""`kvops node check`: everything that a start looks at, without starting."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kvops.node.finding import Finding


def check(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="YAML file of settings.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """What a start would find: Python, torch, GPU, model, memory, disk, files, ports, clock, limits.

    Exit code 0 when a node may start (also with warnings), 1 when a check fails, 2 for settings that are not valid.
    """
    from kvops.config.load import load_config
    from kvops.node.check import run_checks

    report_checks(run_checks(load_config(config).config), as_json)


def report_checks(found: Sequence[Finding], as_json: bool) -> None:
    """Raises typer.Exit with 1 if one failed."""
    if as_json:
        typer.echo(json.dumps([_row(one) for one in found], indent=2))
    else:
        _print(found)
    if any(one.status == "fail" for one in found):
        raise typer.Exit(1)


def _row(one: Finding) -> dict[str, str]:
    row = dataclasses.asdict(dataclasses.replace(one, error=None))
    return {key: value for key, value in row.items() if key != "error"}


def _print(found: Sequence[Finding]) -> None:
    width = max(len(one.check) for one in found)
    for one in found:
        typer.echo(f"{one.status:<4}  {one.check:<{width}}  {one.detail}")
        if one.remedy:
            typer.echo(f"{'':<6}{'':<{width}}  next: {one.remedy}")
    counts = {status: sum(one.status == status for one in found) for status in _ORDER}
    typer.echo(", ".join(f"{count} {status}" for status, count in counts.items() if count))


_ORDER = ("pass", "warn", "fail", "skip")

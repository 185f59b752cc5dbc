"""Settings, versions and what a reload did, as text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from kvops.config.history import Version


def echo_values(told: dict[str, Any], *, origin: bool) -> None:
    """One line a setting, tables taken apart."""
    origins = told["origins"]
    lines = list(_values(told["config"], "", origins))
    width = max(len(key) for key, _, _ in lines) + 1
    for key, value, leaf in lines:
        where = f"  # {origins[leaf]}" if origin else ""
        typer.echo(f"{key + ':':<{width}} {json.dumps(value)}{where}")
    version = f", version {told['version']}" if "version" in told else ""
    pending = bool(told.get("restart_needed"))
    of_version = f" ({told['version_hash']}, restart pending)" if pending else ""
    typer.echo(f"# hash {told['config_hash']}{version}{of_version}")
    for change in told.get("restart_needed", ()):
        typer.echo(f"# with the next start: {_line(change)}")


def echo_changes(rows: Sequence[dict[str, Any]]) -> None:
    if not rows:
        typer.echo("no difference")
    for row in rows:
        typer.echo(f"{_line(row)}{'' if row['live'] else '  (restart needed)'}")


def echo_outcome(outcome: dict[str, Any], *, as_json: bool) -> None:
    """Of an apply or a rollback."""
    if as_json:
        typer.echo(json.dumps(outcome, indent=2))
        return
    name, restart = outcome["node"], outcome["restart_needed"]
    hashes = f"{outcome['previous_hash'] or '-'} → {outcome['version_hash']}"
    typer.echo(f"{name}: v{outcome['version']}, {hashes}")
    if outcome["after"] != outcome["version_hash"]:
        typer.echo(f"  restart pending: in force is {outcome['after']}")
    for row in outcome["live"]:
        typer.echo(f"  in force        {_line(row)}")
    for row in restart:
        typer.echo(f"  restart needed  {_line(row)}")
    for key, origin in outcome["overridden"].items():
        typer.echo(f"  not taken       {key}: the {origin} is stronger")
    start = outcome["next_start"]
    if not outcome["running"]:
        typer.echo(f"{name} does not run; next: {start['command']}")
    elif not outcome["live"] and not restart:
        typer.echo("nothing changed")
    elif restart:
        typer.echo(f"  next: kvops node stop --node {name}, then {start['command']}")
    _echo_file(start, outcome["version"])


def _echo_file(start: dict[str, Any], version: int) -> None:
    """Whatever a start as the last one would take back."""
    file, rows = start["file"], start["differs"]
    remedy = f"correct it, or start with: {start['command']}"
    if start["problem"]:
        typer.echo(f"  your file {file} cannot be compared: {start['problem']}; {remedy}")
    if not rows:
        return
    if file is None:
        what, remedy = "its command line alone still says", f"start with: {start['command']}"
    else:
        what = f"your file {file} still says"
    for row in rows:
        said = f"{row['key']}: {json.dumps(row['after'])}"
        typer.echo(f"  {what} {said} (v{version}: {json.dumps(row['before'])})")
    typer.echo(f"  so the next start as the last one leaves v{version}: {remedy}")


def version_rows(versions: Sequence[Version], *, pending: bool) -> list[tuple[str, ...]]:
    """The newest first. `pending`: not all of the current one is in force."""
    return [
        (
            f"v{one.id}",
            datetime.fromtimestamp(one.at, UTC).strftime("%Y-%m-%d %H:%M:%S"),
            one.author,
            one.config_hash,
            ", ".join(_marks(one, one is versions[-1], pending)) or "-",
            one.note,
        )
        for one in reversed(versions)
    ]


def _marks(version: Version, current: bool, pending: bool) -> list[str]:
    now = ["current"] + ["restart pending"] * pending if current else []
    return now + ["good"] * version.good


def _line(change: dict[str, Any]) -> str:
    return f"{change['key']}: {json.dumps(change['before'])} → {json.dumps(change['after'])}"


def _values(document: dict[str, Any], prefix: str, origins: dict[str, str]) -> Any:
    """Key, value and the setting that it belongs to."""
    for name, value in document.items():
        key = prefix + name
        leaf = next((one for one in origins if key == one or key.startswith(f"{one}.")), "")
        if isinstance(value, dict) and value:
            yield from _values(value, f"{key}.", origins)
        elif leaf:
            yield key, value, leaf

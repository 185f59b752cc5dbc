"""`kvops snapshot`: one node's state once, for people or as JSON."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import typer

from kvops.cli.options import ApiKeyFile, ControlUrl, FleetFile, Node, TokenFile

if TYPE_CHECKING:
    from kvops.telemetry.snapshot import NodeSnapshot
    from kvops.telemetry.targets import Target


REPORT_WIDTH = 100


def snapshot(
    node: Node = None,
    as_json: bool = typer.Option(False, "--json", help="Print the snapshot as JSON."),
    fleet: FleetFile = None,
    api_key_file: ApiKeyFile = None,
    token_file: TokenFile = None,
    control_url: ControlUrl = None,
) -> None:
    """Show a node's memory, KV pool, queue, latency and traffic."""
    from kvops.telemetry import fleet as fleets
    from kvops.telemetry.snapshot import encode

    target = fleets.find(
        node,
        fleet,
        api_key_file=api_key_file,
        token_file=token_file,
        control_url=control_url,
    )
    taken = asyncio.run(_take(target))
    if as_json:
        typer.echo(encode(taken).decode())
        return
    from rich.console import Console

    from kvops.tui.render.report import report_lines

    console = Console(highlight=False, markup=False)
    width = min(console.width, REPORT_WIDTH) if console.is_terminal else REPORT_WIDTH
    for line in report_lines(taken, width, console.encoding.startswith("utf")):
        console.print(line, soft_wrap=True)


async def _take(target: Target) -> NodeSnapshot:
    from kvops.telemetry.clients.kvops import KvopsClient

    client = KvopsClient(target)
    try:
        return await client.snapshot()
    finally:
        await client.aclose()

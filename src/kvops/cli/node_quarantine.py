"""`kvops node quarantine`: which request shapes killed engines and are refused, and how to let them in again."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer

from kvops.cli.local_node import NodeOption, call, find
from kvops.units import format_duration

app = typer.Typer(
    no_args_is_help=True, help="Request shapes that were in flight when engines died."
)

_PARAMETERS = (
    "max_tokens", "min_tokens", "temperature", "top_k", "top_p", "min_p", "frequency_penalty",
    "presence_penalty", "repetition_penalty", "logprobs", "ignore_eos",
)  # fmt: skip


@app.callback()
def _group() -> None:
    pass


@app.command("list")
def list_shapes(
    node: NodeOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Quarantined shapes, then suspects. A shape is tenant, lengths and parameters, never content."""
    from kvops.cli.columns import print_table

    record = find(node)
    answer = call(record, "GET", "/control/quarantine")
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
        return
    if not answer["shapes"]:
        typer.echo(f"{record.name} has nothing in quarantine and suspects nothing")
        return
    columns = (
        "id",
        "standing",
        "crashes",
        "last",
        "until",
        "tenant",
        "prompt tokens",
        "n",
        "parameters",
    )
    rows = [_cells(shape) for shape in answer["shapes"]]
    print_table(columns, rows, expendable=("parameters", "n", "until", "last"))
    typer.echo(f"requests refused since the node started: {answer['refused']}")


@app.command()
def clear(
    shape: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Of one shape; default: all of them.")
    ] = None,
    node: NodeOption = None,
) -> None:
    """Let requests of a shape in again, and forget their crashes."""
    record = find(node)
    cleared = call(record, "POST", "/control/quarantine/clear", {"id": shape})["cleared"]
    typer.echo(f"{record.name} forgot {cleared} {'shape' if cleared == 1 else 'shapes'}")


def _cells(suspect: dict[str, Any]) -> tuple[str, ...]:
    shape, until = suspect["shape"], suspect["until"]
    reasons = ", ".join(suspect["reasons"][-3:])
    return (
        suspect["id"],
        suspect["standing"],
        f"{len(suspect['crashes'])} ({reasons})",
        f"{_moment(suspect['crashes'][-1])}",
        "-" if until is None else f"in {format_duration(max(0.0, until - time.time()))}",
        shape["tenant"],
        ", ".join(str(ask["prompt_tokens"]) for ask in shape["asks"]),
        str(shape["choices"]),
        _parameters(shape["asks"][0]),
    )


def _moment(unix_seconds: float) -> str:
    return f"{format_duration(max(0.0, time.time() - unix_seconds))} ago"


def _parameters(ask: dict[str, Any]) -> str:
    params = ask["params"]
    shown = [f"{name}={params[name]}" for name in _PARAMETERS if name in params]
    counts = {"logit_bias": ask["biased_tokens"], "stop_token_ids": ask["stop_tokens"]}
    shown += [f"{count} {name}" for name, count in counts.items() if count]
    return " ".join(shown + ["seed"] * ask["seeded"])

"""`kvops model eval`: what a model's formats cost in quality, as a table, in its manifest, and as an exit code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvops.node.wire import KvDtype, WeightsDtype
from kvops.units import format_duration, format_whole

if TYPE_CHECKING:
    from kvops.models.evaluation import Evaluation
    from kvops.models.store import StoredModel
    from kvops.node.evaluation import Combination
    from kvops.quality.evaluate import Result

DEFAULT_TOKENS = 8192
"""The cost of int8 then has a margin of about 0.2 % perplexity, and two cores need a minute or two."""
FAILED, INCONCLUSIVE = 1, 3


def evaluate(
    name: Annotated[
        str, typer.Argument(metavar="NAME|PATH", help="Name of a pulled model, or a path.")
    ],
    weights: Annotated[
        WeightsDtype,
        typer.Option(
            "--weights",
            help="Format of the weights; auto: as a node would choose.",
        ),
    ] = "auto",
    kv: Annotated[
        KvDtype,
        typer.Option(
            "--kv",
            help="Format of keys and values; auto: as a node would choose.",
        ),
    ] = "auto",
    everything: Annotated[
        bool, typer.Option("--all", help="Every combination that this machine computes.")
    ] = False,
    tokens: Annotated[
        int,
        typer.Option(
            "--tokens", metavar="COUNT", min=256, max=100_000, help="Tokens of text to predict."
        ),
    ] = DEFAULT_TOKENS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure what rounded weights and KV cost in quality, against float32, and record it in the manifest.

    Perplexity and likeliest token over text that comes with Python, and recall of numbers hidden in long prompts.
    A node's `auto` then follows the record: nothing that costs more than 1 % perplexity.

    Exit code 0: within 1 %, 1: over it, 3: too few tokens to tell.
    """
    from kvops.cli.progress import shown_progress
    from kvops.models import store
    from kvops.quality.evaluate import evaluate as results

    model = store.resolve(name)
    wanted = _wanted(weights, kv, everything)
    with shown_progress("tokens") as progress:
        done = list(results(model, wanted, tokens, progress))
    if as_json:
        _print_json(model, done)
    else:
        _print(model, done)
    if code := _exit_code(done):
        raise typer.Exit(code)


def _wanted(weights: WeightsDtype, kv: KvDtype, everything: bool) -> list[Combination]:
    """Raises UsageError for a combination beside --all."""
    from kvops.errors import UsageError
    from kvops.node.evaluation import Combination

    if not everything:
        return [Combination(weights, kv)]
    if (weights, kv) != ("auto", "auto"):
        raise UsageError("--all takes every combination", hint="leave out --weights and --kv")
    return []


def _exit_code(results: Sequence[Result]) -> int:
    verdicts = {result.evaluation.verdict for result in results}
    if "over" in verdicts:
        return FAILED
    return INCONCLUSIVE if "inconclusive" in verdicts else 0


def _print(model: StoredModel, results: Sequence[Result]) -> None:
    from kvops.cli.columns import print_table

    columns = (
        "weights",
        "KV",
        "perplexity",
        "against float32",
        "same top token",
        "recall",
        "time",
        "verdict",
    )
    rows = [_row(result) for result in results]
    typer.echo(f"{model.name}, revision {model.revision}, on the {results[0].evaluation.device}")
    print_table(columns, rows, expendable=("time", "same top token", "perplexity"))
    for line in _conditions(results[0].evaluation):
        typer.echo(line)
    typer.echo(_recorded(model, results))


def _row(result: Result) -> tuple[str, ...]:
    from kvops.models.evaluation import format_cost

    one = result.evaluation
    exact = one.verdict == "exact"
    return (
        one.weights,
        one.kv,
        f"{one.perplexity:.3f}",
        "the reference" if exact else f"{format_cost(one.cost)} ± {one.margin * 100:.2f} %",
        "" if exact else f"{one.top1_agreement * 100:.1f} %",
        f"{one.recalled} of {one.needles}" if one.needles else "no room",
        format_duration(result.seconds),
        _VERDICTS[one.verdict],
    )


_VERDICTS = {
    "exact": "exact",
    "within": "within 1 %",
    "over": "over 1 %: auto avoids it",
    "inconclusive": "inconclusive: raise --tokens",
}


def _conditions(one: Evaluation) -> list[str]:
    from kvops.quality.needles import DEPTHS

    lines = [
        f"{format_whole(one.tokens)} tokens of the {one.corpus} (sha256 {one.corpus_sha256[:12]}); "
        "± is two standard errors",
        f"recall: {one.needles} numbers in long prompts, at depths {', '.join(map(str, DEPTHS))} %",
    ]
    return lines if one.needles else lines[:1]


def _recorded(model: StoredModel, results: Sequence[Result]) -> str:
    if model.manifest is None:
        return "not recorded: read in place; kvops model pull it to keep figures"
    if any(result.recorded for result in results):
        return f"recorded: kvops model show {model.name}"
    return "not recorded: float32 throughout needs no evaluation"


def _print_json(model: StoredModel, results: Sequence[Result]) -> None:
    import json

    rows = [result_fields(result.evaluation) for result in results]
    for row, result in zip(rows, results, strict=True):
        row |= {"seconds": round(result.seconds, 2), "recorded": result.recorded}
    fields = {"name": model.name, "revision": model.revision, "results": rows}
    typer.echo(json.dumps(fields, indent=2))


def result_fields(evaluation: Evaluation) -> dict[str, Any]:
    import msgspec

    fields: dict[str, Any] = msgspec.to_builtins(evaluation)
    return fields | {"cost": evaluation.cost, "verdict": evaluation.verdict}

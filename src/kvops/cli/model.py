"""`kvops model`: pull, list, show, verify, evaluate and remove the models of this machine."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvops.cli.model_eval import evaluate, result_fields
from kvops.units import format_bytes, format_count

if TYPE_CHECKING:
    from kvops.models.manifest import Manifest
    from kvops.models.store import StoredModel

app = typer.Typer(no_args_is_help=True, help="Fetch, check and evaluate models.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of a pulled model.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.callback()
def _group() -> None:
    pass


@app.command()
def pull(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="smollm2-135m, hf:ORG/NAME[@REV], a .gguf file or a folder."
        ),
    ],
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Name in the store.")
    ] = None,
    link: Annotated[
        bool, typer.Option("--link", help="Link a local model, do not copy it.")
    ] = False,
) -> None:
    """Fetch a model, check it and store it."""
    from kvops.cli.progress import shown_progress
    from kvops.models.pull import pull as fetch
    from kvops.models.sources import parse_source

    with shown_progress() as progress:
        manifest, fetched = fetch(parse_source(source, link=link), progress, name=name)
        if manifest.source.startswith("catalog:"):
            progress.step("preparing the engine for this machine", None)
            _prepare(manifest.name)
    size = format_bytes(manifest.size)
    done = "pulled" if fetched else "already there, verified:"
    typer.echo(f"{done} {manifest.name} ({manifest.family}, {size}, revision {manifest.revision})")


def _prepare(name: str) -> None:
    """Compile with the pull, which takes its time anyway. If that fails, the first start does it, or says why."""
    import subprocess
    import sys

    from kvops.models import store

    command = [sys.executable, "-m", "kvops.node.engine.prepare", str(store.resolve(name).path)]
    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)


@app.command("list")
def list_(json: AsJson = False) -> None:
    """The models that were pulled."""
    from kvops.models import store

    models = [model.manifest for model in store.list_models() if model.manifest is not None]
    if json:
        _print_json([_row(manifest) for manifest in models])
    elif models:
        _print_table(models)
    else:
        typer.echo("no models yet: kvops model pull smollm2-135m")
    for name in store.broken_models():
        typer.echo(f"warning: {name} has no readable manifest; kvops model remove {name}", err=True)


@app.command()
def show(
    name: Annotated[
        str, typer.Argument(metavar="NAME|PATH", help="Name of a pulled model, or a path.")
    ],
    json: AsJson = False,
) -> None:
    """Architecture, KV bytes a token, files and source of a model."""
    from kvops.models.checkpoint import open_checkpoint
    from kvops.models.store import resolve

    model = resolve(name)
    checkpoint = open_checkpoint(model.path)
    fields = _details(model, checkpoint.parameters, checkpoint.spec)
    if json:
        _print_json(fields)
        return
    for label, value in _lines(fields):
        typer.echo(f"{label:<18} {value}")


@app.command()
def verify(name: Name, json: AsJson = False) -> None:
    """Hash every file again and repeat the checks of the pull. Exit code 1 when something is wrong."""
    from kvops.models import store

    faults = store.verify(name)
    if json:
        _print_json(
            {
                "name": name,
                "ok": not faults,
                "faults": [{"file": f.file, "reason": f.reason} for f in faults],
            }
        )
    elif not faults:
        typer.echo(f"{name}: all files are as they were pulled")
    for fault in faults:
        typer.echo(f"{name}: {fault.file} {fault.reason}", err=True)
    if faults:
        typer.echo(f"  next: {store.pull_again(store.pulled(name))}", err=True)
        raise typer.Exit(1)


app.command("eval")(evaluate)


@app.command()
def remove(
    name: Name, yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False
) -> None:
    """Delete a pulled model."""
    from kvops.models import store

    store.check_removable(name)
    if not yes and not _confirmed(f"Remove {name}?"):
        typer.echo(f"{name} stays", err=True)
        raise typer.Exit(1)
    store.remove(name)
    typer.echo(f"removed {name}")


def _confirmed(question: str) -> bool:
    """Raises UsageError where nobody is there to answer."""
    from kvops.errors import UsageError

    try:
        return typer.confirm(question)
    except typer.Abort:
        if sys.stdin.isatty():
            raise
        raise UsageError(
            "nobody answers: the input is at its end", hint="--yes removes without asking"
        ) from None


def _row(manifest: Manifest) -> dict[str, Any]:
    return {
        "name": manifest.name,
        "family": manifest.family,
        "parameters": manifest.parameters,
        "size_bytes": manifest.size,
        "revision": manifest.revision,
        "source": manifest.source,
        "linked": manifest.linked,
        "pulled_at": manifest.pulled_at,
    }


def _details(model: StoredModel, parameters: int, spec: Any) -> dict[str, Any]:
    from kvops.models.store import evaluations_of

    manifest = model.manifest
    known = () if manifest is None else evaluations_of(manifest)
    files = (
        []
        if manifest is None
        else [{"name": f.name, "size": f.size, "sha256": f.sha256} for f in manifest.files]
    )
    return {
        "name": model.name,
        "family": spec.family,
        "parameters": parameters,
        "layers": spec.n_layers,
        "hidden_size": spec.hidden_size,
        "heads": spec.n_heads,
        "kv_heads": spec.n_kv_heads,
        "head_dim": spec.head_dim,
        "vocab_size": spec.vocab_size,
        "max_context_length": spec.max_context_length,
        "kv_bytes_per_token": {
            "float32": spec.kv_bytes_per_token(4),
            "bfloat16": spec.kv_bytes_per_token(2),
        },
        "path": str(model.path),
        "source": model.source,
        "revision": model.revision,
        "pulled_at": None if manifest is None else manifest.pulled_at,
        "evaluations": [
            result_fields(one)
            | {"origin": "here" if manifest and one in manifest.evaluations else "catalog"}
            for one in known
        ],
        "files": files,
    }


def _lines(fields: dict[str, Any]) -> list[tuple[str, str]]:
    kv = {kind: format_bytes(count) for kind, count in fields["kv_bytes_per_token"].items()}
    kv_sizes = f"{kv['float32']} in fp32, {kv['bfloat16']} in bf16"
    heads = f"{fields['heads']}, {fields['kv_heads']} KV heads, head dim {fields['head_dim']}"
    lines = [
        ("name", fields["name"]),
        ("family", fields["family"]),
        ("parameters", format_count(fields["parameters"])),
        ("layers", str(fields["layers"])),
        ("heads", heads),
        ("vocabulary", str(fields["vocab_size"])),
        ("context", f"{fields['max_context_length']} tokens"),
        ("KV per token", kv_sizes),
        ("source", fields["source"]),
        ("revision", fields["revision"]),
        ("pulled", _when(fields["pulled_at"])),
        ("path", fields["path"]),
    ]
    files = [
        ("file", f"{f['name']}  {format_bytes(f['size'])}  sha256 {f['sha256']}")
        for f in fields["files"]
    ]
    return lines + [("evaluated", _evaluated(one)) for one in fields["evaluations"]] + files


def _evaluated(one: dict[str, Any]) -> str:
    from kvops.models.evaluation import format_cost

    formats = f"{one['weights']} weights, {one['kv']} KV on {one['device']}"
    cost = f"{format_cost(one['cost'])} ± {one['margin'] * 100:.2f} % perplexity"
    recall = f"recall {one['recalled']} of {one['needles']}"
    return f"{formats}: {cost}, {recall}, {one['origin']}, {_when(one['evaluated_at'])}"


def _when(pulled_at: float | None) -> str:
    if pulled_at is None:
        return "no, read in place"
    return f"{datetime.fromtimestamp(pulled_at):%Y-%m-%d %H:%M}"


def _print_json(value: Any) -> None:
    import json

    typer.echo(json.dumps(value, indent=2))


def _print_table(models: list[Manifest]) -> None:
    from kvops.cli.columns import print_table

    rows = [
        (
            manifest.name,
            manifest.family,
            format_count(manifest.parameters),
            format_bytes(manifest.size),
            manifest.revision,
            f"{manifest.source} (linked)" if manifest.linked else manifest.source,
        )
        for manifest in models
    ]
    columns = ("name", "family", "parameters", "size", "revision", "source")
    print_table(columns, rows, expendable=("source", "revision", "family", "parameters", "size"))

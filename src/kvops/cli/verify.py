"""`kvops verify`: run a profile of checks against a node and exit with the verdict."""

from __future__ import annotations

from pathlib import Path

import typer

from kvops.cli.output import report_console
from kvops.cli.verify_runs import checks, named, runs, schema, show
from kvops.errors import UsageError

app = typer.Typer(invoke_without_command=True, no_args_is_help=False)
app.command("runs")(runs)
app.command("show")(show)
app.command("checks")(checks)
app.command("schema")(schema)


@app.callback()
def verify(
    context: typer.Context,
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
        [],
        "--only",
        metavar="CHECK",
        help="Run only this check, area (V7) or prefix (recall.); repeatable.",
    ),
    skip: list[str] = typer.Option(
        [],
        "--skip",
        metavar="CHECK",
        help="Leave this check, area or prefix out; repeatable.",
    ),
    json_file: str | None = typer.Option(
        None, "--json", metavar="FILE", help="Write the result there; - for stdout."
    ),
    junit_file: str | None = typer.Option(
        None, "--junit", metavar="FILE", help="Write it as JUnit XML, for CI."
    ),
    html_file: str | None = typer.Option(
        None, "--html", metavar="FILE", help="Write it as one HTML file, with plots."
    ),
    markdown_file: str | None = typer.Option(
        None, "--markdown", metavar="FILE", help="Write it as Markdown."
    ),
    baseline: str | None = typer.Option(
        None,
        "--baseline",
        metavar="RUN",
        help="Compare measurements with this run or result file, or with the last good one: last.",
    ),
    force_baseline: bool = typer.Option(
        False, "--force-baseline", help="Compare also with a run of another model or engine."
    ),
    waive: list[str] = typer.Option(
        [],
        "--waive",
        metavar="CHECK",
        help="Let this check stand although it does not pass; needs --reason; may be repeated.",
    ),
    reason: list[str] = typer.Option(
        [],
        "--reason",
        metavar="TEXT",
        help="Why; one for each --waive, recorded with your name in all reports.",
    ),
    resume: str | None = typer.Option(
        None,
        "--resume",
        metavar="RUN",
        help="Go on with an interrupted run, or with the latest of them: last.",
    ),
    allow_remote: list[str] = typer.Option(
        [],
        "--allow-remote",
        metavar="HOST",
        help="A host other than this one may be loaded; may be repeated.",
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
    """Check that a node does what it was promised to do; or list, show and explain: see the commands.

    Exit codes: 0 all required checks passed or are waived, 1 one failed, 2 usage or configuration,
    3 inconclusive, 4 node unreachable, 130 interrupted. With --only or --skip they speak of the checks
    that ran, and the verdict says "partial".

    KVOPS_GATEWAY_URL (the address that clients use), KVOPS_TENANT_KEYS_FILE (one key a line, each of another
    tenant) and KVOPS_NODE_LOG (where the log is not that of a node of this machine) let it see more.
    """
    if context.invoked_subcommand is not None:
        _require_no_options(context)
        return
    from kvops.verify.command import gate
    from kvops.verify.order import Asked, prepare
    from kvops.verify.outputs import STDOUT

    if resume is not None and _was_typed(context, "profile"):
        raise UsageError(
            "--resume goes on with the profile that the run was started with",
            hint="leave --profile out",
        )
    wanted = named(json_file, junit_file, html_file, markdown_file)
    order = prepare(
        Asked(
            node=node,
            profile=profile,
            only=only,
            skip=skip,
            wanted=wanted,
            baseline=baseline,
            force_baseline=force_baseline,
            waive=waive,
            reason=reason,
            resume=resume,
            allow_remote=allow_remote,
            api_key_file=api_key_file,
            token_file=token_file,
            control_url=control_url,
        )
    )
    raise typer.Exit(gate(order, report_console(stderr=STDOUT in wanted.values())))


def _require_no_options(context: typer.Context) -> None:
    """Raises UsageError for an option that would be lost, since it stands before a command that has its own."""
    for name in context.params:
        if _was_typed(context, name):
            raise UsageError(
                f"an option stands before {context.invoked_subcommand!r}, which does not look at it",
                hint=f"kvops verify {context.invoked_subcommand} --help lists its own",
            )


def _was_typed(context: typer.Context, option: str) -> bool:
    source = context.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"

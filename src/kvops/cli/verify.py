"""`kvops verify`: run a profile of checks against a node and exit with the verdict."""

from __future__ import annotations

import typer

from kvops.cli.options import AllowRemote, ApiKeyFile, ControlUrl, Node, TokenFile
from kvops.cli.output import report_console
from kvops.cli.verify_options import (
    Baseline,
    ForceBaseline,
    HtmlFile,
    JsonFile,
    JunitFile,
    MarkdownFile,
    Only,
    ProfileName,
    Reason,
    RequireBaseline,
    Resume,
    Skip,
    Waive,
)
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
    node: Node = None,
    profile: ProfileName = "smoke",
    only: Only = None,
    skip: Skip = None,
    json_file: JsonFile = None,
    junit_file: JunitFile = None,
    html_file: HtmlFile = None,
    markdown_file: MarkdownFile = None,
    baseline: Baseline = None,
    force_baseline: ForceBaseline = False,
    require_baseline: RequireBaseline = False,
    waive: Waive = None,
    reason: Reason = None,
    resume: Resume = None,
    allow_remote: AllowRemote = None,
    api_key_file: ApiKeyFile = None,
    token_file: TokenFile = None,
    control_url: ControlUrl = None,
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
            only=only or [],
            skip=skip or [],
            wanted=wanted,
            baseline=baseline,
            force_baseline=force_baseline,
            require_baseline=require_baseline,
            waive=waive or [],
            reason=reason or [],
            resume=resume,
            allow_remote=allow_remote or [],
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

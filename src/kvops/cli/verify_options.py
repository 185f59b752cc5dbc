"""Options of `kvops verify`."""

from __future__ import annotations

from typing import Annotated

import typer

ProfileName = Annotated[
    str, typer.Option("--profile", metavar="PROFILE", help="A built-in profile or a .yaml file.")
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="CHECK",
        help="Run only this check, area (V7) or prefix (recall.); repeatable.",
    ),
]
Skip = Annotated[
    list[str] | None,
    typer.Option(
        "--skip", metavar="CHECK", help="Leave this check, area or prefix out; repeatable."
    ),
]
JsonFile = Annotated[
    str | None, typer.Option("--json", metavar="FILE", help="Write the result there; - for stdout.")
]
JunitFile = Annotated[
    str | None, typer.Option("--junit", metavar="FILE", help="Write it as JUnit XML, for CI.")
]
HtmlFile = Annotated[
    str | None,
    typer.Option("--html", metavar="FILE", help="Write it as one HTML file, with plots."),
]
MarkdownFile = Annotated[
    str | None, typer.Option("--markdown", metavar="FILE", help="Write it as Markdown.")
]
Baseline = Annotated[
    str | None,
    typer.Option(
        "--baseline",
        metavar="RUN",
        help="Compare measurements with this run or result file, or with the last good one: last.",
    ),
]
ForceBaseline = Annotated[
    bool,
    typer.Option("--force-baseline", help="Compare also with a run of another model or engine."),
]
RequireBaseline = Annotated[
    bool,
    typer.Option(
        "--require-baseline",
        help="For CI: a run that finds nothing to compare with is inconclusive (exit code 3), not passed.",
    ),
]
Waive = Annotated[
    list[str] | None,
    typer.Option(
        "--waive",
        metavar="CHECK",
        help="Let this check stand although it does not pass; needs --reason; may be repeated.",
    ),
]
Reason = Annotated[
    list[str] | None,
    typer.Option(
        "--reason",
        metavar="TEXT",
        help="Why; one for each --waive, recorded with your name in all reports.",
    ),
]
Resume = Annotated[
    str | None,
    typer.Option(
        "--resume",
        metavar="RUN",
        help="Go on with an interrupted run, or with the latest of them: last. It knows its profile and checks: "
        "leave --profile, --only and --skip out.",
    ),
]

"""Options of `kvops load run`: how much is sent, when, and from where."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Scenario = Annotated[
    str, typer.Argument(metavar="SCENARIO", help="One of those that kvops load list shows.")
]
LoadedNode = Annotated[
    str | None,
    typer.Option(
        metavar="NODE",
        help="Name, fleet name or URL of a node; default: the only one that runs here.",
    ),
]
Users = Annotated[int | None, typer.Option(metavar="N", min=1, max=10_000, help="Users at once.")]
Duration = Annotated[
    str | None, typer.Option(metavar="TIME", help="End the run after this time, e.g. 60s.")
]
Seed = Annotated[
    int | None,
    typer.Option(metavar="N", help="Of all that is random; default: a new one, recorded."),
]
Rate = Annotated[
    float | None,
    typer.Option(
        metavar="R",
        help="Open loop: R requests, or sessions, a second, whatever the answers do; Poisson by default.",
    ),
]
Arrivals = Annotated[
    str | None,
    typer.Option(
        metavar="KIND",
        help="closed (users wait), constant, poisson, gamma, ramp, burst or trace.",
    ),
]
RateEnd = Annotated[float | None, typer.Option(metavar="R", help="Of a ramp: the rate at the end.")]
Burstiness = Annotated[
    float | None,
    typer.Option(metavar="B", help="Of gamma arrivals: 1 is Poisson, lower is burstier."),
]
BurstSize = Annotated[
    int | None, typer.Option(metavar="N", help="Of bursts: requests, or sessions, at once.")
]
BurstEvery = Annotated[
    str | None, typer.Option(metavar="TIME", help="Of bursts: time from one to the next.")
]
Trace = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Replay a CSV with the columns time,input_tokens,output_tokens, a request for each row.",
    ),
]
MaxInFlight = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Open loop: a request due while N are in flight counts as not sent. Default: 1000.",
    ),
]
Processes = Annotated[
    int,
    typer.Option(metavar="N", min=1, max=64, help="Processes of the load generator here."),
]
Workers = Annotated[
    int,
    typer.Option(
        metavar="K", min=0, max=1000, help="Send from K processes of kvops load worker instead."
    ),
]
Bind = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Where workers find this run; default: 127.0.0.1:5557. Trusted networks only.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Make the run's folder in this one; default: the state folder."
    ),
]
FleetFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Names of nodes, and which may be loaded; default: fleet.yaml."
    ),
]

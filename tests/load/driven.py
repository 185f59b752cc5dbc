"""Whole runs without the command line: the launcher in this process, a real locust, the scripted node."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from kvops.load import launcher, scenarios
from kvops.load.pacing import Pacing
from kvops.load.records import RequestRecord, read_records
from kvops.load.runs import Run
from kvops.telemetry.targets import Target

FOLDER = Path(__file__).parent / "scenarios"


def plan(url: str, out: Path, name: str = "steady", **more: Any) -> launcher.Plan:
    scenario = scenarios.read(FOLDER / f"{name}.yaml")
    options = scenario.defaults() | more.pop("options", {})
    settings = {"users": 2, "duration": 2.0, "seed": 5, "pacing": Pacing()} | more
    target = Target(name="scripted", url=url)
    return launcher.Plan(scenario=scenario, target=target, options=options, out=out, **settings)


def drive(
    made: launcher.Plan, stop: threading.Event | None = None
) -> tuple[Run, list[RequestRecord]]:
    run = launcher.run(made, lambda _: None, stop or threading.Event())
    return run, read_records(run.folder)

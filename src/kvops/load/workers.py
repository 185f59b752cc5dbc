"""A worker on a machine of its own: a locust that takes part in another machine's run and keeps nothing here."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from pathlib import Path

import msgspec

from kvops.errors import LoadRunError
from kvops.load.process import Handover, Locust, worker_arguments
from kvops.load.scenarios import Scenario
from kvops.load.spread import Address
from kvops.telemetry.targets import Target

POLL = 0.2


class Outcome(msgspec.Struct, frozen=True):
    words: str
    exit_code: int


def take_part(
    scenario: Scenario,
    master: Address,
    stop: threading.Event,
    *,
    processes: int,
    api_key: str | None,
    allow_remote: tuple[str, ...],
) -> Outcome:
    """Until the master's run ends, or `stop` is set. Raises LoadRunError for one that could not be taken part in."""
    # The URL is the master's to say; only the key is ours.
    ours = Target(name=scenario.name, url="", api_key=api_key)
    handover = Handover(parent=os.getpid(), allow_remote=allow_remote)
    with tempfile.TemporaryDirectory(prefix="kvops-worker-") as folder:
        locust = Locust(
            worker_arguments(scenario.path, master, processes), Path(folder), handover, ours
        )
        try:
            _wait(locust, stop)
        except KeyboardInterrupt:
            stop.set()
        finally:
            locust.end()
        if stop.is_set():
            return Outcome("stopped", 130)
        status, reason = locust.status()
    if status == "failed":
        raise LoadRunError(reason, hint="the master says more")
    return Outcome("the run is over; its records are at the master", 0)


def _wait(locust: Locust, stop: threading.Event) -> None:
    while locust.running() and not stop.is_set():
        time.sleep(POLL)
    if stop.is_set():
        locust.ask_to_stop()
    while locust.running() and not locust.overdue():
        time.sleep(POLL)

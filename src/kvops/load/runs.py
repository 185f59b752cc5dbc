"""Run folders: one folder a run with `run.json`, `requests.jsonl`, `client.jsonl` and locust's own log."""

from __future__ import annotations

import difflib
import os
import secrets
import time
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit, urlunsplit

import msgspec

from kvops import __version__, paths
from kvops.errors import LoadRunError, RunUnreadable, UsageError
from kvops.load.pacing import Pacing
from kvops.telemetry.snapshot import NodeSnapshot

RUN_FILE = "run.json"
LOG_FILE = "locust.log"
RESERVE_FILE = ".reserve"
RESERVE = 32 * 1024
"""Bytes."""

Moment = Annotated[float, msgspec.Meta(ge=0, le=253_402_300_799)]
"""Unix seconds, to the end of the year 9999: beyond it no calendar writes a date."""
Status = Literal["running", "finished", "interrupted", "failed"]


class RunInfo(msgspec.Struct, kw_only=True):
    schema_version: int = 1
    run: str
    scenario: str
    report: str
    """Which report reads the records: recall, injection, ramp or plain."""
    options: dict[str, Any]
    users: Annotated[int, msgspec.Meta(ge=1)]
    duration: float | None = None
    """Bound of the run, seconds."""
    pacing: Pacing = Pacing()
    inputs: dict[str, str] = {}
    """SHA-256 of the files that say when and how much is sent, by path: those who take part must have the same."""
    processes: int = 1
    """Processes of the load generator that send, on this machine or on others."""
    seed: int
    target: str
    """URL without credentials."""
    model: str | None = None
    max_model_len: int | None = None
    before: NodeSnapshot | None = None
    after: NodeSnapshot | None = None
    """None: the node had no snapshot to give."""
    started_at: Moment
    finished_at: Moment | None = None
    status: Status = "running"
    """A run whose kvops was killed stays `running`."""
    reason: str = ""
    version: str = __version__


class Run(msgspec.Struct, frozen=True):
    folder: Path
    info: RunInfo

    def save(self) -> None:
        paths.write_atomic(self.folder / RUN_FILE, msgspec.json.encode(self.info) + b"\n")

    def finish(self, status: Status, reason: str = "") -> None:
        """Raises LoadRunError when the disk does not even take that."""
        self.info.status, self.info.reason, self.info.finished_at = status, reason, time.time()
        try:
            (self.folder / RESERVE_FILE).unlink(missing_ok=True)
            self.save()
        except OSError as error:
            raise LoadRunError(
                f"the end of the run cannot be written to {self.folder}: {error.strerror}",
                hint=f"make room there; the run counts as one that never ended: {reason or status}",
            ) from error


def new_id(scenario: str, now: float) -> str:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    return f"{scenario}-{stamp}-{secrets.token_hex(3)}"


def create(info: RunInfo, parent: Path | None = None) -> Run:
    """Make the run's folder under `parent` (default: the state folder). Raises UsageError."""
    # Locust, which runs in the folder itself, is told where it is.
    base = (parent or paths.runs_dir()).absolute()
    try:
        run = Run(paths.make_private(base) / info.run, info)
        run.folder.mkdir(mode=0o700)
        run.save()
        # Whatever fills the disk: the end of the run can then still be written, with its last snapshot.
        (run.folder / RESERVE_FILE).write_bytes(os.urandom(RESERVE))
    except OSError as error:
        raise UsageError(
            f"cannot make a run folder in {base}: {error.strerror}",
            hint="name a folder that can be written to: --out DIR",
        ) from error
    return run


def load(folder: Path) -> Run:
    """Raises RunUnreadable when `folder` holds no readable run."""
    try:
        return Run(folder, msgspec.json.decode((folder / RUN_FILE).read_bytes(), type=RunInfo))
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise RunUnreadable(f"{folder} holds no readable run: {error}") from error


def find(text: str | None) -> Run:
    """A run by folder, by id or by the start of an id; None is the latest. Raises UsageError, RunUnreadable."""
    if text == "":
        raise UsageError("an empty name is no run", hint="kvops load runs lists them")
    if text is not None and (Path(text) / RUN_FILE).is_file():
        return load(Path(text))
    known = folders()
    matching = [folder for folder in known if text is None or folder.name.startswith(text)]
    if not known:
        what = "no run" if text is None else f"no run {text!r}"
        raise UsageError(f"{what} in {paths.runs_dir()}", hint="kvops load run SCENARIO makes one")
    if text is not None and not matching:
        near = difflib.get_close_matches(text, [folder.name for folder in known], 1, 0.6)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UsageError(f"no run {text!r}", hint=f"{hint}kvops load runs lists them")
    if text is not None and len(matching) > 1:
        raise UsageError(
            f"{text!r} names {len(matching)} runs",
            hint="give more of the id, or its folder: kvops load runs lists them",
        )
    return load(matching[-1])


def folders() -> list[Path]:
    """The folders of all runs kept in the state folder, the latest last."""
    found = sorted(paths.runs_dir().glob(f"*/{RUN_FILE}"), key=lambda file: file.stat().st_mtime)
    return [file.parent for file in found]


def without_credentials(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))

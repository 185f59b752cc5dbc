"""The folder of a run: where it is, and how it is watched."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvops.errors import LoadRunError
from kvops.load import process
from kvops.load.process import Handover
from kvops.load.records import ClientSample, Tail
from kvops.load.reports import base
from kvops.telemetry.targets import Target
from tests.load.driven import drive, plan
from tests.load.scripted import node, serving


def test_a_broken_line_does_not_end_the_watching_of_a_run(tmp_path: Path) -> None:
    file = tmp_path / "client.jsonl"
    sound = b'{"at":1.0,"users":1,"in_flight":1,"cpu":0.1,"lag":0.0}\n'
    file.write_bytes(sound + b'{"at":"soon"}\n' + b"[" * 100_000 + b"\n" + sound)
    assert len(Tail(file, ClientSample).new()) == 2


def test_a_run_that_could_not_be_made_is_no_failed_expectation() -> None:
    assert LoadRunError.exit_code == base.EXIT_CODES["inconclusive"]


def test_a_run_is_kept_under_a_folder_named_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with serving(node) as server:
        run, records = drive(plan(server.url, Path("kept/here"), duration=1.0))
    assert run.info.status == "finished", run.info.reason
    assert run.folder.parent == tmp_path / "kept" / "here"
    assert records


def test_locust_finds_the_home_that_is_named_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KVOPS_HOME", "home")
    passed = process._environment(Handover(parent=1), Target(name="n", url="http://127.0.0.1:1"))
    assert passed["KVOPS_HOME"] == str(tmp_path / "home")

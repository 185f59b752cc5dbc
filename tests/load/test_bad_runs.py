"""Runs that cannot go well: the partial results are kept and marked, and it is said why."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from kvops.errors import LoadRunError
from kvops.load import runs
from kvops.load.pacing import Pacing
from kvops.load.records import ErrorClass, JsonLines, ServerSample, Tail
from kvops.load.reports import base, summary
from tests.harness import KVOPS
from tests.load.driven import drive, plan
from tests.load.scripted import Reply, Request, node, serving


@pytest.mark.parametrize(
    "pacing",
    [Pacing(), pytest.param(Pacing(kind="constant", rate=20), marks=pytest.mark.long)],
    ids=["closed", "open"],
)
def test_a_node_that_goes_away_ends_the_run(tmp_path: Path, pacing: Pacing) -> None:
    """The listener is closed after some answers: from then on the port refuses."""

    def dying(request: Request, reply: Reply) -> None:
        node(request, reply)
        if len(server.requests) >= 12:
            server.stop_listening()

    with serving(dying) as server:
        run, records = drive(plan(server.url, tmp_path, pacing=pacing, duration=60.0))
    assert run.info.status == "failed"
    assert run.info.reason.startswith("the node went away: ")
    assert "Connection refused" in run.info.reason
    assert [r for r in records if r.expected], "what came before is kept"
    refused = [r for r in records if r.error_class is ErrorClass.CONNECT_REFUSED]
    sends = [r.t_send for r in refused]
    assert max(sends) - min(sends) >= 4.5, "a moment's absence is not the end"
    if not pacing.open:
        assert len(refused) < 100, "users who find nobody do not spin"


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A file can grow no further, here and in processes started from here: as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_ends_the_run_and_keeps_what_was_written(tmp_path: Path) -> None:
    with serving(node) as server, files_of_at_most(40_000):
        run, records = drive(plan(server.url, tmp_path, duration=60.0))
    assert run.info.status == "failed"
    assert run.info.reason.startswith("the records cannot be written: ")
    file = run.folder / "requests.jsonl"
    assert 38_000 < file.stat().st_size <= 40_000
    assert file.read_bytes().endswith(b"}\n"), "only whole lines"
    assert len(records) == len(file.read_bytes().splitlines())
    verdict = summary.judge(base.read(run))
    assert base.EXIT_CODES[verdict.outcome] in (1, 3)
    assert run.info.reason in " ".join(verdict.reasons)


def test_a_whole_answer_to_a_request_for_a_stream_is_no_success(tmp_path: Path) -> None:
    def at_once(request: Request, reply: Reply) -> None:
        if request.path != "/v1/chat/completions":
            node(request, reply)
        else:
            reply.json(200, {"choices": [{"message": {"content": "Yes"}}]})

    with serving(at_once) as server:
        run, records = drive(plan(server.url, tmp_path))
    ended = {one.error_class for one in records if not one.cancelled}
    assert ended == {ErrorClass.NOT_A_STREAM}
    assert "application/json came" in summary.judge(base.read(run)).reasons[0]


def test_a_line_that_does_not_fit_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "server.jsonl"
    lines = JsonLines(file)
    lines.append(ServerSample(at=1.0))
    size = file.stat().st_size
    with files_of_at_most(size + 10), pytest.raises(OSError, match="No space left"):
        lines.append(ServerSample(at=2.0, state="ready"))
    assert file.stat().st_size == size
    lines.append(ServerSample(at=3.0))
    assert [one.at for one in Tail(file, ServerSample).new()] == [1.0, 3.0]


def test_the_end_of_a_run_has_room_of_its_own(tmp_path: Path) -> None:
    info = runs.RunInfo(
        run="r",
        scenario="s",
        report="plain",
        options={},
        users=1,
        seed=0,
        target="t",
        started_at=0.0,
    )
    run = runs.create(info, tmp_path)
    reserve = run.folder / runs.RESERVE_FILE
    assert reserve.stat().st_blocks * 512 >= runs.RESERVE
    run.finish("finished")
    assert not reserve.exists()
    run.folder.joinpath(runs.RUN_FILE).unlink()
    run.folder.rename(tmp_path / "gone")
    (tmp_path / "r").write_text("no folder any more")
    with pytest.raises(LoadRunError, match="cannot be written") as raised:
        run.finish("failed", "the disk is full")
    assert "the disk is full" in raised.value.hint


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("def broken(:\n", "SyntaxError: invalid syntax"),
        pytest.param(
            "from kvops.load import nothing_here\n",
            "ImportError: cannot import name 'nothing_here'",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "raise ValueError('no such thing')\n",
            "ValueError: no such thing",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_scenario_that_cannot_be_imported_says_where(
    tmp_path: Path, code: str, wanted: str
) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text(code)
    with serving(node) as server:
        made = plan(server.url, tmp_path / "runs")
        scenario = made.scenario.model_copy(update={"path": broken})
        run, records = drive(msgspec.structs.replace(made, scenario=scenario))
    assert run.info.status == "failed"
    assert wanted in run.info.reason
    assert "broken.py" in run.info.reason
    assert records == []


def test_a_broken_description_is_told_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        "from kvops.load.locust_user import register\nregister(__file__)\n"
    )
    (tmp_path / "broken.yaml").write_text("purpose: [")
    locust = [sys.executable, "-m", "locust", "-f", str(tmp_path / "broken.py"), "--headless"]
    ended = subprocess.run(locust, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "broken.yaml is no scenario description" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_second_interrupt_ends_a_run_at_once(kvops_home: Path) -> None:
    asked, over = threading.Event(), threading.Event()

    def hung(request: Request, reply: Reply) -> None:
        if request.path == "/v1/chat/completions":
            asked.set()
            over.wait(60)
        node(request, reply)

    with serving(hung) as server:
        process = subprocess.Popen(
            [*KVOPS, "load", "run", "ramp", "--node", server.url, "--json"], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        assert asked.wait(30)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert any("stopping" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=30)
        over.set()
    assert process.returncode == 130
    report = json.loads(out)
    assert report["run"]["status"] == "interrupted"
    assert report["summary"]["cancelled"] == 0, (
        "after ten seconds the requests in flight would have been recorded"
    )

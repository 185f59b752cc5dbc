"""A run that several commands take part in, as on several machines."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgpack
import psutil
import pytest
import zmq

from kvops.errors import LoadRunError
from kvops.load import launcher, scenarios, workers
from kvops.load.pacing import Pacing
from kvops.load.records import read_client
from kvops.load.spread import Address
from tests.harness import KVOPS
from tests.load.driven import FOLDER, drive, plan
from tests.load.scripted import node, serving

STEADY = scenarios.read(FOLDER / "steady.yaml")


@pytest.fixture
def place() -> Address:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return Address("127.0.0.1", listener.getsockname()[1])


STRANGE = [
    b"\xff\xfe garbage", b"", msgpack.dumps(7), msgpack.dumps([1, 2]), msgpack.dumps([{}, [], "me"]),
    msgpack.dumps(["locustfile", {}, "me"]), msgpack.dumps(["of no kind", {}, "me"]),
    msgpack.dumps(["exception", 5, "me"]),
    msgpack.dumps(["kvops_ready", "yes", "me"]), msgpack.dumps(["kvops_users", {"users": 0}, "me"]),
    msgpack.dumps(["kvops_lines", {"requests": b"mine\n", "client": b"mine\n"}, "me"]),
    msgpack.dumps(["kvops_end", {"ending": 7, "reason": "because"}, "me"]),
]  # fmt: skip


@contextmanager
def stranger(place: Address) -> Iterator[None]:
    """Sends the master what no worker sends, from before it listens."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as sock:
        sock.setsockopt(zmq.IDENTITY, b"me")
        sock.setsockopt(zmq.LINGER, 0)
        sock.connect(f"tcp://{place.host}:{place.port}")
        for packet in STRANGE:
            sock.send(packet)
        yield


def take_part(place: Address, key: str, scenario: scenarios.Scenario = STEADY) -> workers.Outcome:
    return workers.take_part(
        scenario, place, threading.Event(), processes=1, api_key=key, allow_remote=()
    )


def test_workers_share_the_work_and_the_master_keeps_every_record(
    tmp_path: Path, place: Address
) -> None:
    pacing = Pacing(kind="constant", rate=20)
    with serving(node) as server, ThreadPoolExecutor() as pool, stranger(place):
        ends = [pool.submit(take_part, place, f"of-worker-{number}") for number in (0, 1)]
        made = plan(server.url, tmp_path, pacing=pacing, workers=2, bind=place)
        run, records = drive(made)
        asked = [r for r in server.requests if r.path == "/v1/chat/completions"]
        assert [end.result(60).exit_code for end in ends] == [0, 0]
    assert run.info.status == "finished", run.info.reason
    assert len(records) == len({one.seq for one in records}) == len(asked) == 40
    assert [sum(one.worker == worker for one in records) for worker in (0, 1)] == [20, 20]
    keys = {request.headers["authorization"] for request in asked}
    assert keys == {"Bearer of-worker-0", "Bearer of-worker-1"}, "each has a key of its own"
    assert {one.worker for one in read_client(run.folder)} == {0, 1}
    lines = (run.folder / "requests.jsonl").read_bytes().splitlines()
    assert len(lines) == 40, "nobody else writes into the run"
    log = (run.folder / "locust.log").read_text()
    assert log.count("left out") + log.count("Unrecognized message") >= 8, log
    started = run.info.started_at
    assert all(started < one.t_send < time.time() for one in records)


@pytest.mark.long
def test_a_worker_of_another_scenario_is_turned_away_and_both_sides_say_why(
    tmp_path: Path, place: Address
) -> None:
    with serving(node) as server, ThreadPoolExecutor() as pool:
        end = pool.submit(take_part, place, "key", scenarios.find("needle_recall"))
        run, _ = drive(plan(server.url, tmp_path, workers=1, bind=place))
        with pytest.raises(LoadRunError, match="the master runs steady, this worker needle_recall"):
            end.result(60)
    assert run.info.status == "failed"
    assert "the master runs steady, this worker needle_recall" in run.info.reason


@pytest.mark.long
def test_the_command_of_a_worker_waits_and_can_be_stopped(place: Address) -> None:
    process = subprocess.Popen(
        [*KVOPS, "load", "worker", "needle_recall", "--master", f"{place.host}:{place.port}"],
        stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    assert "waiting for the master at 127.0.0.1:" in process.stderr.readline()
    process.terminate()
    assert process.wait(40) == 130


@pytest.mark.long
def test_a_worker_that_dies_ends_the_run_as_failed(tmp_path: Path) -> None:
    """Its share of the requests would be missing, and nobody would know."""
    killed = threading.Event()

    def kill_a_worker(progress: launcher.Progress) -> None:
        if progress.records and not killed.is_set():
            (locust,) = psutil.Process(os.getpid()).children()
            locust.children()[-1].kill()
            killed.set()

    with serving(node) as server:
        made = plan(
            server.url,
            tmp_path,
            pacing=Pacing(kind="constant", rate=20),
            duration=60.0,
            processes=2,
        )
        run = launcher.run(made, kill_a_worker, threading.Event())
    assert run.info.status == "failed"
    assert "went away" in run.info.reason
